//! `/metrics`: requests by route, sandboxes by state, what was created and run.
//!
//! Labels have few values: the route as it is written (`/v1/sandboxes/{id}`), never an id.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Method;
use engine::Snapshot;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// From a fast exec to a slow create.
const BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0];

type Labels = Vec<(&'static str, &'static str)>;

#[derive(Clone)]
struct LatencyBuckets;

impl MetricConstructor<Histogram> for LatencyBuckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

pub(crate) struct Metrics {
    registry: Registry,
    /// The routes of the server, so that a label costs no allocation.
    routes: HashMap<String, &'static str>,
    requests: Family<Labels, Counter>,
    latency: Family<Labels, Histogram, LatencyBuckets>,
    in_flight: Gauge<i64, AtomicI64>,
    pub(crate) connections: Gauge<i64, AtomicI64>,
    sandboxes: Family<Labels, Gauge>,
    exits: Family<Labels, Counter>,
    creates: Counter,
    create_failures: Counter,
    destroys: Counter,
    execs: Counter,
    pools_unreachable: Gauge,
    leads: Gauge,
    lease_epoch: Gauge,
    pools_without: Family<Labels, Gauge>,
}

impl Metrics {
    pub(crate) fn new(routes: impl Iterator<Item = String>) -> Self {
        // Leaked on purpose: there are as many as routes, and they live as long as the process.
        let routes = routes
            .map(|route| {
                let forever: &'static str = Box::leak(route.clone().into_boxed_str());
                (route, forever)
            })
            .collect();
        let mut metrics = Self {
            registry: Registry::with_prefix("bastide"),
            routes,
            requests: Family::default(),
            latency: Family::new_with_constructor(LatencyBuckets),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            sandboxes: Family::default(),
            exits: Family::default(),
            creates: Counter::default(),
            create_failures: Counter::default(),
            destroys: Counter::default(),
            execs: Counter::default(),
            pools_unreachable: Gauge::default(),
            leads: Gauge::default(),
            lease_epoch: Gauge::default(),
            pools_without: Family::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("http_requests", "Requests answered", self.requests.clone());
        registry.register(
            "http_request_duration_seconds",
            "Time to the head of the answer",
            self.latency.clone(),
        );
        registry.register("http_in_flight", "Requests being answered", self.in_flight.clone());
        registry.register("http_connections", "Open connections", self.connections.clone());
        registry.register("sandboxes", "Sandboxes now, by state", self.sandboxes.clone());
        registry.register(
            "sandbox_exits",
            "Ends of compute that nobody asked for",
            self.exits.clone(),
        );
        registry.register("sandbox_creates", "Sandboxes created", self.creates.clone());
        registry.register(
            "sandbox_create_failures",
            "Creates that failed",
            self.create_failures.clone(),
        );
        registry.register("sandbox_destroys", "Sandboxes destroyed", self.destroys.clone());
        registry.register("execs", "Commands run", self.execs.clone());
        registry.register(
            "pools_unreachable",
            "Pools that did not answer",
            self.pools_unreachable.clone(),
        );
        registry.register(
            "leads",
            "1 on the server that launches and stops sandboxes",
            self.leads.clone(),
        );
        registry.register(
            "lease_epoch",
            "Grows whenever another server becomes the leader",
            self.lease_epoch.clone(),
        );
        registry.register(
            "pools_without",
            "Pools that do without something, as those of an ordinary user do",
            self.pools_without.clone(),
        );
    }

    pub(crate) fn request_began(&self) {
        self.in_flight.inc();
    }

    pub(crate) fn request_ended(&self) {
        self.in_flight.dec();
    }

    /// `route` is as axum matched it, if it did.
    pub(crate) fn answered(
        &self,
        method: &Method,
        route: Option<&str>,
        status: u16,
        took: Duration,
    ) {
        let route = route.and_then(|route| self.routes.get(route)).copied().unwrap_or("unmatched");
        let method = method_label(method);
        let labels = vec![("method", method), ("route", route)];
        self.latency.get_or_create(&labels).observe(took.as_secs_f64());
        let labels = vec![("method", method), ("route", route), ("status", status_label(status))];
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn stands(&self, (role, epoch): (&'static str, Option<u64>)) {
        self.leads.set(i64::from(role == "leader"));
        self.lease_epoch.set(epoch.map_or(0, |epoch| i64::try_from(epoch).unwrap_or(i64::MAX)));
    }

    /// In the text format of `OpenMetrics`, which Prometheus reads.
    pub(crate) fn text(&self, now: &Snapshot) -> String {
        for (phase, count) in &now.phases {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            self.sandboxes.get_or_create(&vec![("state", phase.as_str())]).set(count);
        }
        for (reason, count) in &now.exits_total {
            set(&self.exits.get_or_create(&vec![("reason", reason_label(*reason))]), *count);
        }
        set(&self.creates, now.creates_total);
        set(&self.create_failures, now.create_failures_total);
        set(&self.destroys, now.destroys_total);
        set(&self.execs, now.execs_total);
        self.pools_unreachable.set(i64::try_from(now.pools_unreachable).unwrap_or(i64::MAX));
        for (what, count) in &now.pools_without {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            self.pools_without.get_or_create(&vec![("capability", what)]).set(count);
        }
        let mut text = String::with_capacity(16 * 1024);
        encode(&mut text, &self.registry).expect("writing to a string");
        text
    }
}

/// The engine counts these; a scrape copies them.
fn set(counter: &Counter<u64, AtomicU64>, value: u64) {
    counter.inner().store(value, Ordering::Relaxed);
}

/// Of the methods that routes take; a client cannot make up labels.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PATCH" => "PATCH",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

fn status_label(status: u16) -> &'static str {
    match status {
        101 => "101",
        200 => "200",
        201 => "201",
        204 => "204",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        409 => "409",
        413 => "413",
        422 => "422",
        426 => "426",
        429 => "429",
        500 => "500",
        501 => "501",
        503 => "503",
        507 => "507",
        _ => "other",
    }
}

fn reason_label(reason: model::EndReason) -> &'static str {
    use model::EndReason;
    match reason {
        EndReason::UserRequest => "user_request",
        EndReason::Idle => "idle",
        EndReason::Deadline => "deadline",
        EndReason::Lifetime => "lifetime",
        EndReason::Oom => "oom",
        EndReason::Exited => "exited",
        EndReason::CreditsExhausted => "credits_exhausted",
        EndReason::AdminAction => "admin_action",
        EndReason::HostLost => "host_lost",
        EndReason::CreateFailed => "create_failed",
        EndReason::Unknown => "unknown",
    }
}
