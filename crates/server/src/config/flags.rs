//! The flags of `bastide serve`: one for every setting, made from the table of settings.

use std::path::PathBuf;

use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};

use crate::config::setting::{Kind, Setting};
use crate::config::settings::SETTINGS;

/// Flatten this into a command of clap's.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// What was given, in the order of the table.
    pub values: Vec<(&'static Setting, String)>,
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Settings in TOML [env: BASTIDE_CONFIG]");
        SETTINGS.iter().fold(command.arg(config), |command, setting| {
            let help = setting.help.replace('`', "");
            let default = setting.default.replace('`', "");
            let arg = Arg::new(setting.key)
                .long(setting.flag())
                .value_name(setting.value_name)
                .action(ArgAction::Set)
                .help(format!("{help} [env: {}] [default: {default}]", setting.variable()));
            command.arg(match setting.kind {
                Kind::Switch => arg.num_args(0..=1).default_missing_value("true"),
                Kind::Text | Kind::Value => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        if let Some(file) = matches.get_one::<PathBuf>("config") {
            self.config = Some(file.clone());
        }
        for setting in SETTINGS {
            if let Some(text) = matches.get_one::<String>(setting.key) {
                self.values.push((setting, text.clone()));
            }
        }
        Ok(())
    }
}
