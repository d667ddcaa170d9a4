//! Accepting connections, and ending gracefully: bind, serve, drain.
//!
//! A server has one of two parts, and may change from the second to the first:
//!
//! ```text
//!              lead                                   ┌► engine ─► sandboxes
//!  clients ──► TCP ──► routes ────────────────────────┤
//!              follow                                 └► guests that run
//!  clients ──► TCP ──► routes ─► forward ─► run/leader.sock ──► the leader's routes
//! ```
//!
//! Connections are bounded; a slow head is cut off; a client that goes away drops its handler, and
//! with it what the handler was doing.

mod address;
mod door;
mod local;
mod share;
mod socket;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use blobs::Blobs;
use engine::Engine;
use store::{Epoch, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use vault::Vault;

use crate::accounts::Accounts;
use crate::app::{App, PublicAddress, Rt, Shared, Standing};
use crate::code::CodeMode;
use crate::config::{Config, Listen};
use crate::forward::Leader;
use crate::listen::address::{public_address, reachable, rt_url};
use crate::listen::door::{Door, Part};
pub(crate) use crate::listen::door::{Inside, PeerAddress};
pub(crate) use crate::listen::local::leader_socket;
pub(crate) use crate::listen::socket::MayStall;
use crate::metrics::Metrics;
use crate::money::Cashier;
use crate::oneshot::Watched;
use crate::persistence::Persistence;
use crate::preview::{Domain, Signer};
use crate::rate::Rate;
use crate::refusal::Refusal;
use crate::relay::Relay;
use crate::roster::Entered;
use crate::sessions::token::SessionTokens;
use crate::sessions::{self, Sessions};
use crate::signing_key::SigningKey;
use crate::tls::Acceptor;
use crate::turns::{self, Turns};
use crate::upstream::Upstream;
use crate::{openapi, retention, routes};

/// Calls that other servers pass on may take this long to finish when we end.
const LOCAL_DRAIN: Duration = Duration::from_secs(15);

/// Opens every address of the settings. One on which another server of the data directory listens is
/// shared with it.
pub async fn bind(config: &Config) -> Result<Vec<TcpListener>> {
    bind_all(&config.listen, config, "listen").await
}

/// The same for those that take the sockets of sessions alone.
pub async fn bind_rt(config: &Config) -> Result<Vec<TcpListener>> {
    match &config.rt_listen {
        Some(addresses) => bind_all(addresses, config, "rt_listen").await,
        None => Ok(Vec::new()),
    }
}

async fn bind_all(addresses: &Listen, config: &Config, key: &str) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in &addresses.0 {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let shared = share::borrow(&config.data_dir, *address);
                let shared = shared.map_err(|why| {
                    tracing::debug!(error = format!("{why:#}"), "no server shares its listener");
                    anyhow::Error::from(error)
                });
                let shared = shared.with_context(|| format!("{key}: bind {address}"))?;
                TcpListener::from_std(shared).with_context(|| format!("{key}: take it over"))?
            }
            Err(error) => return Err(error).with_context(|| format!("{key}: bind {address}")),
        };
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Resolves once the process is asked to end by SIGTERM or SIGINT.
pub async fn signalled() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Answers requests until `shutdown` as the only server there is; see [`Server::end`].
pub async fn serve(
    listeners: Vec<TcpListener>,
    config: &Config,
    engine: Engine,
    store: Store,
    shutdown: CancellationToken,
) -> Result<()> {
    let mut server = Server::open(listeners, config, store)?;
    server.listen_for_sessions(bind_rt(config).await?)?;
    server.lead(engine, None)?;
    shutdown.cancelled().await;
    server.end().await;
    Ok(())
}

/// A front door. Until it is told its part, connections wait to be accepted.
pub struct Server {
    listeners: Vec<TcpListener>,
    data_dir: PathBuf,
    config: Config,
    store: Store,
    vault: Vault,
    upstream: Arc<Upstream>,
    persistence: Arc<Persistence>,
    blobs: Blobs,
    billing: Cashier,
    code: Arc<CodeMode>,
    address: PublicAddress,
    signer: Signer,
    accounts: Accounts,
    domain: Option<Domain>,
    document: OpenApi,
    door: Door,
    /// For calls that other servers pass on.
    local: Door,
    /// For the sockets of sessions alone.
    rt_door: Door,
    rt_listeners: Vec<TcpListener>,
    rt: Rt,
    draining: CancellationToken,
    /// Tunnels, and connections to the leader.
    tasks: TaskTracker,
    accepting: TaskTracker,
    accepting_local: TaskTracker,
    shutdown: CancellationToken,
    local_shutdown: CancellationToken,
    /// Absent for who is alone.
    roster: Option<Entered>,
    /// Every part's; an earlier one may still answer what came before.
    engines: Vec<Engine>,
}

impl Server {
    pub fn open(listeners: Vec<TcpListener>, config: &Config, store: Store) -> Result<Self> {
        let acceptor = match (&config.tls_cert, &config.tls_key) {
            (Some(cert), Some(key)) => Some(Acceptor::open(cert, key)?),
            (Some(_), None) | (None, Some(_)) | (None, None) => None,
        };
        let first = listeners.first().context("listen: no address")?.local_addr()?;
        let document = openapi::router().1;
        let draining = CancellationToken::new();
        let cut_off = CancellationToken::new();
        let room = |count: u32| Arc::new(Semaphore::new(count as usize));
        let door = Door {
            // Nobody sees it: nothing is accepted yet.
            part: Part::new(Router::new().fallback(async || Refusal::NoRoute)),
            metrics: Arc::new(Metrics::new(openapi::routes(&document))),
            acceptor,
            header_timeout: Duration::from_secs(config.limits.header_timeout_seconds),
            stall_timeout: Duration::from_secs(config.limits.body_timeout_seconds),
            room: room(config.limits.connections),
            connections: TaskTracker::new(),
            ending: draining.clone(),
            cut_off: cut_off.clone(),
        };
        let local = Door {
            acceptor: None,
            connections: TaskTracker::new(),
            ending: CancellationToken::new(),
            cut_off: CancellationToken::new(),
            ..door.clone()
        };
        let rt_door = Door { part: door.part.apart(), ..door.clone() };
        let address = public_address(config, first)?;
        store.set_tariff(config.tariff());
        let key = SigningKey::open(&config.data_dir, config.signing_key_file.as_deref())?;
        Ok(Self {
            listeners,
            rt_door,
            rt_listeners: Vec::new(),
            rt: Rt {
                tokens: SessionTokens::new(&key),
                url: rt_url(config, &address),
                ping_every: Duration::from_secs(config.rt_ping_seconds),
            },
            signer: Signer::new(&key),
            accounts: Accounts::open(config, &key)?,
            domain: Domain::new(config.ports.domain.as_deref(), &address),
            data_dir: config.data_dir.clone(),
            config: config.clone(),
            upstream: Arc::new(Upstream::new(
                config.hosts.clone(),
                config.llm.allowed_base_urls.clone(),
            )?),
            persistence: Arc::new(Persistence::new(config, &store)?),
            vault: config.vault(&store)?,
            blobs: config.blobs()?,
            billing: Cashier::new(config, &address)?,
            code: Arc::new(CodeMode::new(config, &address, door.part.inside())?),
            store,
            address,
            document,
            door,
            local,
            draining,
            tasks: TaskTracker::new(),
            accepting: TaskTracker::new(),
            accepting_local: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            local_shutdown: CancellationToken::new(),
            roster: None,
            engines: Vec::new(),
        })
    }

    /// Takes the sockets of sessions there as well.
    pub fn listen_for_sessions(&mut self, listeners: Vec<TcpListener>) -> Result<()> {
        if let (Some(first), None) = (listeners.first(), &self.config.rt_public_url) {
            let bound = first.local_addr()?;
            let scheme = if self.config.tls_cert.is_some() { "wss" } else { "ws" };
            self.rt.url = format!("{scheme}://{}", reachable(bound));
        }
        self.rt_listeners = listeners;
        Ok(())
    }

    /// Says to people that this server is here.
    pub fn enter_roster(&mut self) -> Result<()> {
        let addresses = self.listeners.iter().map(TcpListener::local_addr);
        let addresses = addresses.map(|address| Ok(address?.to_string()));
        let listen = addresses.collect::<Result<_>>()?;
        self.roster = Some(Entered::new(&self.data_dir, listen)?);
        Ok(())
    }

    /// From now on this server does everything itself. With an epoch, it does so for others too.
    pub fn lead(&mut self, engine: Engine, epoch: Option<Epoch>) -> Result<()> {
        let found = engine.take_found_agents();
        self.serve_relay(&engine);
        let app = self.play(engine, Standing::Leads(epoch))?;
        if let Some(found) = found {
            turns::find_again(&app, found);
        }
        sessions::find_again(&app);
        if epoch.is_some() {
            let socket = local::bind(&leader_socket(&self.data_dir))?;
            let accepted = self.local.clone().accept_local(socket, self.local_shutdown.clone());
            self.accepting_local.spawn(accepted);
        }
        let (cashier, store, until) =
            (self.billing.clone(), self.store.clone(), self.shutdown.clone());
        self.accepting.spawn(async move {
            until.run_until_cancelled(cashier.keep_topping_up(&store)).await;
        });
        let (vault, until) = (self.vault.clone(), self.shutdown.clone());
        self.accepting.spawn(async move {
            let work = async { tokio::join!(vault.keep_resealing(), vault.keep_clean()) };
            until.run_until_cancelled(work).await;
        });
        let (store, until) = (self.store.clone(), self.shutdown.clone());
        let keep_days = self.config.audit.keep_days;
        self.accepting.spawn(async move {
            until.run_until_cancelled(retention::keep_audit(&store, keep_days)).await;
        });
        let (persistence, until) = (Arc::clone(&self.persistence), self.shutdown.clone());
        self.accepting.spawn(async move {
            until.run_until_cancelled(persistence.deliver_all()).await;
        });
        self.accept(epoch.is_some())
    }

    /// From now on this server uses what runs, and passes everything else to who holds the lease.
    pub fn follow(&mut self, engine: Engine) -> Result<()> {
        self.play(engine, Standing::Follows(Leader::of(&self.data_dir)))?;
        self.accept(true)
    }

    /// For the sandboxes of every pool that has a way to it.
    fn serve_relay(&self, engine: &Engine) {
        let (upstream, tasks) = (Arc::clone(&self.upstream), self.tasks.clone());
        let relay = Relay::new(upstream, self.vault.clone(), self.store.clone(), tasks);
        let relay = Arc::new(relay);
        for connections in engine.take_relays() {
            relay.serve(connections, &self.draining);
        }
    }

    fn play(&mut self, engine: Engine, standing: Standing) -> Result<App> {
        if let Some(roster) = &mut self.roster {
            let (role, epoch) = standing.told();
            roster.becomes(role, epoch);
        }
        let app: App = Arc::new(Shared {
            metrics: Arc::clone(&self.door.metrics),
            pages: openapi::pages(&self.document, &self.address.url)?,
            engine: engine.clone(),
            store: self.store.clone(),
            vault: self.vault.clone(),
            upstream: Arc::clone(&self.upstream),
            persistence: Arc::clone(&self.persistence),
            blobs: self.blobs.clone(),
            billing: self.billing.clone(),
            link_seconds: self.config.workspaces.link_seconds,
            signer: self.signer.clone(),
            accounts: self.accounts.clone(),
            preview_domain: self.domain.clone(),
            preview_silence: Duration::from_secs(self.config.ports.silence_seconds),
            address: self.address.clone(),
            limits: self.config.limits,
            catalogue_rate: Rate::per_minute(self.config.limits.catalogue_per_minute),
            metrics_access: self.config.metrics,
            draining: self.draining.clone(),
            tasks: self.tasks.clone(),
            turns: Turns::default(),
            oneshots: Watched::default(),
            sessions: Sessions::new(self.config.llm.default_models.clone()),
            rt: self.rt.clone(),
            code: Arc::clone(&self.code),
            log_level: self.config.log.level.clone(),
            standing,
        });
        self.engines.push(engine);
        self.door.part.set(routes::finish(openapi::router().0, &app));
        self.rt_door.part.set(routes::finish(openapi::sockets(), &app));
        Ok(app)
    }

    fn accept(&mut self, among_others: bool) -> Result<()> {
        let all = std::mem::take(&mut self.listeners).into_iter().map(|one| (one, &self.door));
        let rt = std::mem::take(&mut self.rt_listeners).into_iter();
        for (listener, door) in all.chain(rt.map(|one| (one, &self.rt_door))) {
            tracing::info!("listening on {}", listener.local_addr()?);
            if among_others {
                self.offer(&listener);
            }
            self.accepting.spawn(door.clone().accept(listener, self.shutdown.clone()));
        }
        if let Some(acceptor) = self.door.acceptor.clone() {
            self.accepting.spawn(acceptor.renew(self.shutdown.clone()));
        }
        Ok(())
    }

    fn offer(&self, listener: &TcpListener) {
        match share::Offer::make(&self.data_dir, listener) {
            Ok(offer) => drop(self.accepting.spawn(offer.serve(self.shutdown.clone()))),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "no other server can listen with us")
            }
        }
    }

    /// Takes no more connections; lets requests in flight finish for `drain_seconds`, ends streams and
    /// tunnels, then what others passed on, and shuts the engine down. Sandboxes go on.
    pub async fn end(mut self) {
        if let Some(roster) = &mut self.roster {
            roster.becomes("draining", None);
        }
        tracing::info!(open = self.door.connections.len(), "draining");
        self.shutdown.cancel();
        self.accepting.close();
        self.accepting.wait().await;
        self.tasks.close();
        let patience = Duration::from_secs(self.config.drain_seconds);
        self.door.drain(Some(&self.tasks), patience).await;
        // Until here, so that others are served while we drain; the next leader comes after us.
        self.local_shutdown.cancel();
        self.accepting_local.close();
        self.accepting_local.wait().await;
        self.local.drain(None, LOCAL_DRAIN).await;
        for engine in self.engines {
            engine.shutdown().await;
        }
    }
}
