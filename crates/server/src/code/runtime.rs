//! Which engine runs the code, and in which template (ruling 45).

use guest_proto::code::PRELUDE;
use model::TemplateName;

use crate::config::{Code, Runtime};

/// Where the template of code mode has its engine.
const QUICKJS: &str = "/usr/lib/bastide/code-runner";

/// The same program as a script for Node.
const NODE: &str = include_str!("node.js");

pub(super) fn of(settings: &Code) -> (TemplateName, Vec<String>) {
    match settings.runtime {
        Runtime::Quickjs => (TemplateName::of_code(), vec![QUICKJS.to_owned()]),
        Runtime::Node => {
            let script = NODE.replace("/* PRELUDE */", PRELUDE);
            let argv = ["node", "--max-old-space-size=64", "-e"].map(str::to_owned);
            (settings.template.clone(), argv.into_iter().chain([script]).collect())
        }
    }
}
