//! Images for sandboxes: one pull for everybody who wants the same one, a few at a time, and none
//! again while the last answer is fresh.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use driver::{ImageWanted, Template};
use model::{Error, OwnerId, Result, TemplateName};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::{Inner, LinuxDriver};
use crate::template::{self, ImageAccess, Trusted};

/// Pulls of all owners at once; more wait.
const AT_ONCE_MAX: usize = 4;
/// Different images that one owner may be waiting for.
const OWNER_MAX: usize = 3;
/// How long a tag is believed to mean the same image.
const TAG_FRESH: Duration = Duration::from_secs(60);
/// How long a failure is the answer, so that nobody asks a registry in a circle.
const FAILURE_FRESH: Duration = Duration::from_secs(5);
const REMEMBERED_MAX: usize = 1024;

/// How a pull ended, for all who wait.
#[derive(Debug, Clone)]
enum Ended {
    Here(TemplateName),
    Refused(String),
    Failed(String),
}

struct Ongoing {
    owner: OwnerId,
    ended: watch::Receiver<Option<Ended>>,
}

pub(super) struct Pulls {
    ongoing: HashMap<String, Ongoing>,
    remembered: HashMap<String, (Instant, Ended)>,
    turns: Arc<Semaphore>,
}

impl Default for Pulls {
    fn default() -> Self {
        Self {
            ongoing: HashMap::new(),
            remembered: HashMap::new(),
            turns: Arc::new(Semaphore::new(AT_ONCE_MAX)),
        }
    }
}

impl Pulls {
    fn fresh(&self, reference: &str) -> Option<Ended> {
        let (at, ended) = self.remembered.get(reference)?;
        let fresh = match ended {
            Ended::Here(_) if reference.contains('@') => return Some(ended.clone()),
            Ended::Here(_) => TAG_FRESH,
            Ended::Refused(_) | Ended::Failed(_) => FAILURE_FRESH,
        };
        (at.elapsed() < fresh).then(|| ended.clone())
    }

    fn remember(&mut self, reference: &str, ended: Ended) {
        self.ongoing.remove(reference);
        if self.remembered.len() >= REMEMBERED_MAX {
            self.remembered.clear();
        }
        self.remembered.insert(reference.to_owned(), (Instant::now(), ended));
    }
}

impl LinuxDriver {
    pub(super) async fn pull_image(&self, wanted: &ImageWanted) -> Result<Template> {
        let reference = &wanted.reference;
        let listed = template::is_listed(reference, &self.inner.images.allowed_registries)?;
        if !listed && !wanted.by_operator {
            return Err(not_listed(reference, &self.inner.images.allowed_registries));
        }
        let mut ended = {
            let mut pulls = self.inner.pulls();
            if let Some(ended) = pulls.fresh(reference)
                && let Some(found) = self.inner.answer(ended).transpose()
            {
                return found;
            }
            match pulls.ongoing.get(reference) {
                Some(ongoing) => ongoing.ended.clone(),
                None => self.begin_pull(&mut pulls, wanted)?,
            }
        };
        let waited = ended.wait_for(Option::is_some).await;
        let ended = waited.ok().and_then(|ended| ended.clone());
        let ended = ended.ok_or_else(|| Error::unavailable("the pull was cut short"))?;
        let gone = || Error::unavailable(format!("the image {reference} vanished"));
        self.inner.answer(ended)?.ok_or_else(gone)
    }

    /// A task of its own, which goes on when the callers have gone away.
    fn begin_pull(
        &self,
        pulls: &mut Pulls,
        wanted: &ImageWanted,
    ) -> Result<watch::Receiver<Option<Ended>>> {
        let mine = pulls.ongoing.values().filter(|ongoing| ongoing.owner == wanted.owner).count();
        if mine >= OWNER_MAX {
            return Err(Error::Exhausted {
                detail: format!("{OWNER_MAX} images are being pulled for you already"),
                retry_after: Duration::from_secs(10),
            });
        }
        let (sender, receiver) = watch::channel(None);
        let (owner, ended) = (wanted.owner.clone(), receiver.clone());
        pulls.ongoing.insert(wanted.reference.clone(), Ongoing { owner, ended });
        let inner = Arc::clone(&self.inner);
        let turns = Arc::clone(&pulls.turns);
        let wanted = wanted.clone();
        self.inner.tasks.spawn(async move {
            let ended = tokio::select! {
                ended = inner.pull(&wanted, &turns) => ended,
                () = inner.cancel.cancelled() => Ended::Failed("the server is ending".to_owned()),
            };
            inner.pulls().remember(&wanted.reference, ended.clone());
            sender.send_replace(Some(ended));
        });
        Ok(receiver)
    }
}

impl Inner {
    fn pulls(&self) -> MutexGuard<'_, Pulls> {
        self.pulls.lock().expect("no holder of this lock panics")
    }

    /// The template of an image that is here; `None` when it has been removed since.
    fn answer(&self, ended: Ended) -> Result<Option<Template>> {
        match ended {
            Ended::Here(name) => {
                template::touch_image(&self.templates, &name);
                Ok(self.templates.get(&name)?.map(|built| built.template))
            }
            Ended::Refused(detail) => Err(Error::invalid("image", detail)),
            Ended::Failed(detail) => Err(Error::unavailable(detail)),
        }
    }

    async fn pull(&self, wanted: &ImageWanted, turns: &Semaphore) -> Ended {
        let reference = &wanted.reference;
        let Ok(_turn) = turns.acquire().await else {
            return Ended::Failed("no more images are pulled".to_owned());
        };
        let access = match self.access(wanted) {
            Ok(access) => access,
            Err(error) => return Ended::Failed(error.to_string()),
        };
        let pulled = template::pull_passing(&self.templates, reference, &access, &mut |_| {}).await;
        match pulled {
            Ok(built) => {
                tracing::info!(image = reference, digest = built.template.digest, "pulled");
                Ended::Here(built.template.name)
            }
            Err(Error::Invalid { detail, .. }) => Ended::Refused(detail),
            Err(error) => self.old_one(reference, error),
        }
    }

    /// A registry that does not answer is no reason to refuse an image that is here.
    fn old_one(&self, reference: &str, error: Error) -> Ended {
        let shown = match &error {
            Error::Internal(inner) => format!("{inner:#}"),
            other => other.to_string(),
        };
        tracing::warn!(image = reference, error = shown, "could not pull {reference}");
        let known = self.templates.list().unwrap_or_default();
        let same = known.into_iter().find(|built| {
            built.template.name.is_of_image() && built.template.image.as_deref() == Some(reference)
        });
        match (same, error) {
            (Some(built), _) => Ended::Here(built.template.name),
            (None, Error::Internal(_)) => {
                Ended::Failed(format!("the image {reference} could not be made usable"))
            }
            (None, error) => Ended::Failed(error.to_string()),
        }
    }

    /// Registries that the operator wrote down, or asks for, may have a private address.
    fn access(&self, wanted: &ImageWanted) -> Result<ImageAccess> {
        let listed = self.images.allowed_registries.iter();
        let mut hosts: Vec<String> = listed
            .filter_map(|one| one.split('/').next())
            .filter(|host| *host != "*")
            .map(str::to_owned)
            .collect();
        if wanted.by_operator {
            hosts.push(template::registry_of(&wanted.reference)?);
        }
        Ok(ImageAccess { trusted: Trusted::Hosts(hosts), ..self.images.access.clone() })
    }
}

fn not_listed(reference: &str, allowed: &[String]) -> Error {
    let what = match allowed.is_empty() {
        true => "this deployment pulls no images for you; use a template's name".to_owned(),
        false => format!("images may come from: {}", allowed.join(", ")),
    };
    Error::invalid("image", format!("{reference} is not allowed here; {what}"))
}
