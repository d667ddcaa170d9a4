//! Builds a template: every step in a sandbox of its own, whose changes become a layer that is
//! remembered by what came before and what the step was. A build that failed or was killed goes on
//! after the last layer that was made, and only a whole one is published.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use model::{Error, Limits, Policy, Result, TemplateName};
use sha2::{Digest, Sha256};

use self::yard::{Job, Root, Yard};
use super::definition::Base;
use super::host::hex;
use super::image::{self, ImageAccess};
use super::meta::Meta;
use super::recipe::{LIMITS, Outcome, Recipe, Step, Work};
use super::{Built, TemplateStore, base, definition, lock, passwd, remove_unfinished, try_lock};
use crate::privilege::Privilege;

mod yard;

/// Part of every key: a change in how steps are run makes other layers.
const BUILDER_VERSION: &str = "2";

/// How a build is to be done.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Where uid ranges of all instances on this host are claimed.
    pub runtime_dir: PathBuf,
    /// Runs every step, whatever is remembered.
    pub fresh: bool,
    /// What steps may reach beside the machine's own package mirrors.
    pub allow: Policy,
    pub images: ImageAccess,
    /// Where Debian packages come from, instead of the machine's own apt sources.
    pub mirror: Option<String>,
}

/// What a build tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Step {
        number: usize,
        total: usize,
        title: String,
        cached: bool,
    },
    /// A line that a step printed, in printable characters.
    Log(String),
    /// How much of a layer of an image is here.
    Layer {
        number: usize,
        total: usize,
        bytes: u64,
        of: u64,
    },
    Done {
        template: TemplateName,
        digest: String,
    },
}

pub type Tell<'a> = &'a mut (dyn FnMut(Event) + Send);

/// Builds `recipe` and makes it current. Sandboxes keep what they stand on.
///
/// # Errors
/// `Conflict` when it is being built already; `Unavailable` when a step fails, with the step and
/// where the log is.
pub async fn build(
    store: &TemplateStore,
    recipe: &Recipe,
    options: &BuildOptions,
    tell: Tell<'_>,
) -> Result<Built> {
    // Said before a base is built for minutes.
    for step in &recipe.steps {
        if let Work::Put { source, .. } = &step.work {
            source.find().map_err(|error| Error::invalid("files", format!("{error:#}")))?;
        }
    }
    let dir = store.dir(&recipe.name);
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let _lock = lock_soon(&dir).await?;
    remove_unfinished(&dir)?;
    let _held = store.layers.hold()?;
    let log_path = store.build_log(&recipe.name);
    let log = File::create(&log_path).context("open the build log")?;
    let total = count(store, recipe, 0)?;
    let mut build =
        Build { store, options, yard: None, log, log_path, tell, number: 0, total, depth: 0 };
    let made = build.make(recipe).await;
    if let Some(yard) = build.yard.take() {
        yard.close().await;
    }
    let meta = build.describe(recipe, made?)?;
    store.publish(&meta).context("publish the template")?;
    let Meta { name, digest, .. } = meta;
    (build.tell)(Event::Done { template: name.clone(), digest });
    store.get(&name)?.ok_or_else(|| Error::unavailable(format!("template {name} vanished")))
}

/// Who cleans up after a build that was killed has the lock for a moment; another build, for minutes.
async fn lock_soon(dir: &Path) -> Result<File> {
    for _ in 0..40 {
        if let Some(lock) = try_lock(dir)? {
            return Ok(lock);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    lock(dir)
}

/// A build under way.
struct Build<'a> {
    store: &'a TemplateStore,
    options: &'a BuildOptions,
    /// Opened by the first step that is not remembered.
    yard: Option<Yard>,
    log: File,
    log_path: PathBuf,
    tell: Tell<'a>,
    number: usize,
    total: usize,
    depth: usize,
}

/// What a base or a whole recipe comes to.
#[derive(Debug, Clone, Default)]
struct Made {
    /// The lowest first.
    layers: Vec<String>,
    user: String,
    sudo: bool,
    nesting: bool,
    env: BTreeMap<String, String>,
    limits: Option<Limits>,
    workdir: Option<String>,
    start: Vec<String>,
}

/// Templates that are based on templates.
const DEPTH_MAX: usize = 8;
const STEPS_OF_DEBIAN: usize = 2;

/// How many steps there are, those of a base that is not built included.
fn count(store: &TemplateStore, recipe: &Recipe, depth: usize) -> Result<usize> {
    if depth > DEPTH_MAX {
        return Err(Error::invalid("base", "templates are based on each other in a circle"));
    }
    let below = match &resolved(store, &recipe.base)? {
        Base::Debian { .. } => STEPS_OF_DEBIAN,
        Base::Image(_) => 1,
        Base::Template(name) if store.get(name)?.is_some() => 0,
        Base::Template(name) => match definition(name) {
            Some(definition) => count(store, &Recipe::from(&definition), depth + 1)?,
            None => return Err(no_base(name)),
        },
    };
    Ok(below + recipe.steps.len())
}

/// What a Dockerfile's FROM names may be a template that is built here.
fn resolved(store: &TemplateStore, base: &Base) -> Result<Base> {
    if let Base::Image(text) = base
        && let Ok(name) = text.parse()
        && store.get(&name)?.is_some()
    {
        return Ok(Base::Template(name));
    }
    Ok(base.clone())
}

fn no_base(name: &TemplateName) -> Error {
    if name.as_str() == super::HOST {
        return Error::invalid("base", "host is this machine's own; nothing is built on it");
    }
    Error::invalid("base", format!("no such template: {name}"))
}

impl Build<'_> {
    async fn make(&mut self, recipe: &Recipe) -> Result<Made> {
        let mut made = Box::pin(self.base(&recipe.base)).await?;
        for step in &recipe.steps {
            let sudo = recipe.outcome.sudo.unwrap_or(made.sudo);
            let layer = self.step(&made, step, sudo).await?;
            super::layers::put_on_top(&mut made.layers, layer);
        }
        let Outcome { user, sudo, nesting, env, limits, workdir, start } = recipe.outcome.clone();
        made.user = user.unwrap_or(made.user);
        made.sudo = sudo.unwrap_or(made.sudo);
        made.nesting = nesting.unwrap_or(made.nesting);
        made.env.extend(env);
        made.limits = limits.or(made.limits);
        made.workdir = workdir.or(made.workdir);
        made.start = start.unwrap_or(made.start);
        Ok(made)
    }

    async fn base(&mut self, base: &Base) -> Result<Made> {
        match &resolved(self.store, base)? {
            Base::Debian { suite } => self.debian(suite).await,
            Base::Image(reference) => {
                self.announce(&format!("image {reference}"), false)?;
                let built = Box::pin(image::pull_passing(
                    self.store,
                    reference,
                    &self.options.images,
                    &mut *self.tell,
                ));
                Ok(Made::from(built.await?))
            }
            Base::Template(name) => match self.store.get(name)? {
                Some(built) if !built.layer_ids.is_empty() => Ok(Made::from(built)),
                _ => {
                    self.depth += 1;
                    let definition = definition(name).ok_or_else(|| no_base(name))?;
                    self.make(&Recipe::from(&definition)).await
                }
            },
        }
    }

    async fn debian(&mut self, suite: &str) -> Result<Made> {
        if Privilege::current().has_one_id() {
            return Err(Error::unavailable(
                "Debian cannot be unpacked with one id: its files belong to several\n\
                 hint: docs/rootless.md says how to have more (one_id), or build as root",
            ));
        }
        let lines = base::sources(suite, self.options.mirror.as_deref())?;
        let title = format!("fetch Debian {suite}");
        let script = base::unpack(suite, &lines)?;
        let work = Work::Run(script);
        let job = Job { root: Root::Host, keys: base::keys(&lines), take: base::ROOTFS };
        let tree = self.layer(&[], &Step { title, work }, job).await?;
        let step = Step { title: "configure Debian".into(), work: Work::Run(base::configure()) };
        let seed = self.store.layers.tree(&tree);
        let job = Job { root: Root::Seed(seed), keys: Vec::new(), take: "" };
        let layer = self.layer(&[tree], &step, job).await?;
        Ok(Made { layers: vec![layer], user: "root".into(), ..Made::default() })
    }

    async fn step(&mut self, made: &Made, step: &Step, sudo: bool) -> Result<String> {
        let layers = made.layers.iter().rev().map(|id| self.store.layers.tree(id)).collect();
        let (user, env) = (made.user.clone(), made.env.clone());
        let root = Root::Layers { layers, user, env, sudo };
        let job = Job { root, keys: Vec::new(), take: "" };
        self.layer(&made.layers.clone(), step, job).await
    }

    /// The layer of one step: the remembered one, or a new one.
    async fn layer(&mut self, below: &[String], step: &Step, job: Job) -> Result<String> {
        let packed = match &step.work {
            Work::Put { source, .. } => Some(self.pack(source)?),
            Work::Run(_) => None,
        };
        let digest = packed.as_ref().map_or("", |(_, digest)| digest.as_str());
        let key = key(below, &step.work, digest, &job);
        if let Some(id) = self.store.layers.cached(&key).filter(|_| !self.options.fresh) {
            self.announce(&step.title, true)?;
            return Ok(id);
        }
        self.announce(&step.title, false)?;
        let yard = match self.yard.take() {
            Some(yard) => yard,
            None => Yard::open(self.store, self.options, &self.log_path).await?,
        };
        let yard = self.yard.insert(yard);
        let (log, tell) = (&mut self.log, &mut *self.tell);
        let mut line = |text: String| {
            // A log that cannot be written is no reason to stop.
            let _ = writeln!(log, "{text}");
            tell(Event::Log(text));
        };
        let run = Box::pin(yard.run(&self.store.layers, job, (&step.work, packed), &mut line));
        let done = run.await;
        let id = done.map_err(|error| self.failed(&step.title, error))?;
        self.store.layers.remember(&key, &id)?;
        Ok(id)
    }

    fn announce(&mut self, title: &str, cached: bool) -> Result<()> {
        self.number += 1;
        let (number, total) = (self.number, self.total);
        let how = if cached { " (made before)" } else { "" };
        writeln!(self.log, "[{number}/{total}] {title}{how}").context("write the build log")?;
        (self.tell)(Event::Step { number, total, title: title.to_owned(), cached });
        Ok(())
    }

    fn pack(&self, source: &super::context::Source) -> Result<(File, String)> {
        let file = tempfile::tempfile().context("make a file for the build context")?;
        let digest = source.pack(file.try_clone().context("share a file")?);
        let digest = digest.map_err(|error| Error::invalid("files", format!("{error:#}")))?;
        Ok((file, digest))
    }

    fn failed(&self, title: &str, error: Error) -> Error {
        match error {
            Error::Unavailable { detail } => Error::unavailable(format!(
                "step {} of {} failed ({title}): {detail}; the log is {}",
                self.number,
                self.total,
                self.log_path.display()
            )),
            other => other,
        }
    }

    fn describe(&self, recipe: &Recipe, made: Made) -> Result<Meta> {
        let layers = &self.store.layers;
        let trees: Vec<PathBuf> = made.layers.iter().rev().map(|id| layers.tree(id)).collect();
        Ok(Meta {
            name: recipe.name.clone(),
            digest: String::new(),
            built_at: Timestamp::now(),
            bytes: made.layers.iter().map(|id| layers.bytes(id)).sum(),
            uid: Some(passwd::uid(&made.user, &trees)),
            user: made.user,
            sudo: made.sudo,
            nesting: made.nesting,
            limits: made.limits.unwrap_or(LIMITS),
            env: made.env,
            layers: made.layers,
            workdir: made.workdir,
            start: made.start,
            image: None,
            passing: false,
        }
        .with_digest())
    }
}

impl From<Built> for Made {
    fn from(built: Built) -> Self {
        Self {
            layers: built.layer_ids,
            user: built.template.user,
            sudo: built.sudo,
            nesting: built.nesting,
            env: built.template.env,
            limits: Some(built.template.limits),
            workdir: built.workdir,
            start: built.start,
        }
    }
}

/// What a layer is remembered by: the layers below, and everything that decides what the step does.
fn key(below: &[String], work: &Work, digest: &str, job: &Job) -> String {
    let work = match work {
        Work::Run(script) => format!("run {script:?}"),
        Work::Put { into, source: _ } => format!("put {into:?} {digest}"),
    };
    let root = match &job.root {
        Root::Host => "host".to_owned(),
        Root::Seed(_) => "seed".to_owned(),
        Root::Layers { user, env, layers: _, sudo: _ } => format!("layers {user:?} {env:?}"),
    };
    let mut hash = Sha256::new();
    for part in [BUILDER_VERSION, &work, &root].into_iter().chain(below.iter().map(String::as_str))
    {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

/// Short, because sockets below it have to fit into the kernel's idea of a path.
pub(super) fn yard_dir(data_dir: &Path, name: &str) -> PathBuf {
    let digest = hex(&Sha256::digest(name));
    data_dir.join("builds").join(&digest[..8])
}
