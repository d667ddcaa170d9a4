//! How a template is made: a base, steps, and what holds for sandboxes made from it. Definitions and
//! Dockerfiles both become this.

use std::collections::BTreeMap;

use model::{Limits, TemplateName};

use super::context::Source;
use super::definition::{Base, Definition};

/// Everything that a build needs to know.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub(super) name: TemplateName,
    pub(super) base: Base,
    pub(super) steps: Vec<Step>,
    pub(super) outcome: Outcome,
}

/// One layer.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// What people are shown.
    pub(super) title: String,
    pub(super) work: Work,
}

#[derive(Debug, Clone)]
pub(super) enum Work {
    Run(Script),
    /// Files that are put below a directory, which is made; they belong to root.
    Put {
        into: String,
        source: Source,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) argv: Vec<String>,
    pub(super) user: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) env: BTreeMap<String, String>,
}

/// What sandboxes get. What is absent is as in the base.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub(super) user: Option<String>,
    pub(super) sudo: Option<bool>,
    pub(super) nesting: Option<bool>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) limits: Option<Limits>,
    pub(super) workdir: Option<String>,
    pub(super) start: Option<Vec<String>>,
}

/// What a sandbox gets when neither the template nor its base says.
pub(super) const LIMITS: Limits =
    Limits { vcpu: 1, cpu_fraction: 1.0, memory_mib: 1024, pids: 1024, disk_gb: 5 };

impl Recipe {
    pub fn name(&self) -> &TemplateName {
        &self.name
    }
}

impl From<&Definition> for Recipe {
    fn from(definition: &Definition) -> Self {
        let mut steps = Vec::new();
        if !definition.packages().is_empty() {
            let packages = definition.packages().join(" ");
            steps.push(Step {
                title: format!("packages {packages}"),
                work: Work::Run(root_shell(&format!("{INSTALL}{packages}{TIDY}"))),
            });
        }
        let user = definition.user();
        let mut account = format!("{ACCOUNT}{user}\n");
        if definition.sudo() {
            account.push_str(&format!(
                "mkdir -p /etc/sudoers.d\n\
                 echo '{user} ALL=(ALL:ALL) NOPASSWD: ALL' > /etc/sudoers.d/user\n\
                 chmod 440 /etc/sudoers.d/user\n"
            ));
        }
        let account = Work::Run(root_shell(&account));
        steps.push(Step { title: format!("account {user}"), work: account });
        if !definition.files().is_empty() {
            let source = Source::Inline(definition.files().clone());
            let work = Work::Put { into: "/".to_owned(), source };
            steps.push(Step { title: format!("{} files", definition.files().len()), work });
        }
        for line in definition.run() {
            steps.push(Step { title: format!("run {line}"), work: Work::Run(root_shell(line)) });
        }
        let shell = |line: &str| vec!["/bin/sh".into(), "-c".into(), line.to_owned()];
        Self {
            name: definition.name().clone(),
            base: definition.base().clone(),
            steps,
            outcome: Outcome {
                user: Some(user.to_owned()),
                sudo: Some(definition.sudo()),
                nesting: Some(definition.nesting()),
                env: definition.env().clone(),
                limits: Some(definition.limits()),
                workdir: None,
                start: definition.start().map(shell),
            },
        }
    }
}

/// apt's own questions have no one to answer them, and a layer needs no package lists.
const INSTALL: &str = "\
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Use-Pty=0 \
install --yes --no-install-recommends ";
const TIDY: &str = "
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old
rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
";
/// uid 1000, unless a base has made it.
const ACCOUNT: &str = "\
make() { id \"$1\" >/dev/null 2>&1 ||
  useradd --create-home --uid 1000 --user-group --shell /bin/bash \"$1\"; }
make ";

pub(super) fn root_shell(line: &str) -> Script {
    Script {
        argv: vec!["/bin/sh".into(), "-e".into(), "-c".into(), line.to_owned()],
        user: Some("root".into()),
        cwd: Some("/".into()),
        env: BTreeMap::new(),
    }
}
