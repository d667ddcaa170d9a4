//! The layers, what they refuse, and that the documentation lists every setting.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches};

use super::settings::SETTINGS;
use super::{Config, Environment, Flags, LogFormat, load};

struct Given<'a> {
    file: &'a str,
    variables: &'a [(&'a str, &'a str)],
    flags: &'a [&'a str],
}

fn loaded(given: &Given<'_>) -> anyhow::Result<Config> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bastide.toml");
    std::fs::write(&file, given.file).unwrap();
    let command = Flags::augment_args(Command::new("serve"));
    let args = std::iter::once("serve").chain(given.flags.iter().copied());
    let mut flags = Flags::from_arg_matches(&command.try_get_matches_from(args)?)?;
    flags.config = Some(file);
    let variables: BTreeMap<String, String> =
        given.variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    load(&flags, &Environment { variables, home: Some("/home/me".into()), root: true })
}

#[track_caller]
fn refused(given: &Given<'_>, says: &[&str]) {
    let error = format!("{:#}", loaded(given).unwrap_err());
    for part in says {
        assert!(error.contains(part), "{error:?} does not contain {part:?}");
    }
}

fn file(file: &str) -> Given<'_> {
    Given { file, variables: &[], flags: &[] }
}

#[test]
fn a_flag_wins_over_a_variable_over_the_file_over_the_default() {
    let given = Given {
        file: "drain_seconds = 1\nsweep_seconds = 1\nmetrics = 'off'\n[log]\nlevel = 'warn'\n",
        variables: &[("BASTIDE_SWEEP_SECONDS", "2"), ("BASTIDE_METRICS", "operator")],
        flags: &["--metrics", "open", "--log-format", "json"],
    };
    let config = loaded(&given).unwrap();
    assert_eq!(config.drain_seconds, 1);
    assert_eq!(config.sweep_seconds, 2);
    assert_eq!(config.metrics, super::MetricsAccess::Open);
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.log.level, "warn");
    assert_eq!(config.limits.connections, 4096);
}

#[test]
fn nested_settings_come_from_every_layer() {
    let given = Given {
        file: "[policies]\ncorp = ['git.corp.example:443']\n[quotas.free]\nephemeral_max = 9\n",
        variables: &[("BASTIDE_WARM", "{ standard = 4 }")],
        flags: &["--pools", "[{ name = 'a', max_sandboxes = 2 }]", "--limits-file-bytes", "7"],
    };
    let config = loaded(&given).unwrap();
    assert_eq!(config.warm.values().sum::<usize>(), 4);
    assert_eq!(config.pools()[0].max_sandboxes, Some(2));
    assert_eq!(config.limits.file_bytes, 7);
    let engine = config.engine();
    assert_eq!(engine.quota(model::Plan::Free).ephemeral_max, Some(9));
    assert_eq!(engine.quota(model::Plan::Free).persistent_max, Some(1));
    assert!(engine.policies[&"corp".parse().unwrap()].allows("git.corp.example", 443));
    assert!(!engine.policies[&"default".parse().unwrap()].allows("example.com", 443));
}

#[test]
fn a_default_model_that_is_left_out_stays_and_one_that_can_be_none_is_refused() {
    let table = "{ google = 'gemini-3' }";
    let given = Given { file: "", variables: &[("BASTIDE_LLM_DEFAULT_MODELS", table)], flags: &[] };
    let models = loaded(&given).unwrap().llm.default_models;
    let as_it_was = super::DefaultModels::default();
    assert_eq!(models, super::DefaultModels { google: "gemini-3".into(), ..as_it_was });
    refused(
        &file("[llm.default_models]\nopenai = 'two words'"),
        &["llm.default_models.openai", "two words"],
    );
    refused(&file("[llm.default_models]\nmistral = 'x'"), &["llm.default_models.mistral"]);
}

#[test]
fn unknown_settings_are_named() {
    refused(&file("lisen = '127.0.0.1:1'"), &["lisen", "unknown field", "bastide.toml"]);
    refused(&file("[log]\ncolour = 1"), &["log.colour", "unknown field"]);
    let unknown = [("BASTIDE_LISEN", "127.0.0.1:1")];
    refused(&Given { file: "", variables: &unknown, flags: &[] }, &["BASTIDE_LISEN"]);
    refused(&Given { file: "", variables: &[], flags: &["--lisen", "1"] }, &["--lisen"]);
}

#[test]
fn wrong_values_are_named_with_their_source() {
    refused(&file("drain_seconds = 'soon'"), &["drain_seconds", "bastide.toml"]);
    refused(&file("listen = 'here'"), &["listen", "127.0.0.1:8080"]);
    refused(&file("tls_cert = 'a.pem'"), &["tls_key"]);
    refused(&file("public_url = 'ftp://x'"), &["public_url"]);
    refused(&file("[quotas.gold]\nephemeral_max = 1"), &["quotas.gold"]);
    refused(&file("[disk]\ngb_default = 30"), &["disk.gb_default"]);
    refused(&file("[[pools]]\nname = 'a'\n[[pools]]\nname = 'a'"), &["pools"]);
    refused(&file("[policies]\nx = ['no spaces']"), &["policies"]);
    refused(&file("[policies]\nnone = ['public']"), &["policies.none"]);
    refused(&file("= 1"), &["bastide.toml"]);
    let soon = [("BASTIDE_DRAIN_SECONDS", "\"soon\"")];
    refused(
        &Given { file: "", variables: &soon, flags: &[] },
        &["drain_seconds", "BASTIDE_DRAIN_SECONDS"],
    );
    let words = ["--drain-seconds", "a b"];
    refused(&Given { file: "", variables: &[], flags: &words }, &["--drain-seconds"]);
}

#[test]
fn templates_of_the_directory_are_known_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["mine.toml", "README.md", "Not A Name.toml"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let config = Config { templates_dir: Some(dir.path().into()), ..Config::default() };
    let names = config.engine().defined_templates;
    assert!(names.contains(&"mine".parse().unwrap()));
    assert!(names.contains(&"standard".parse().unwrap()));
    assert_eq!(names.len(), 5);
}

#[test]
fn other_peoples_variables_are_left_alone() {
    let variables = [
        ("BASTIDE_API_KEY", "e2a_x"),
        ("BASTIDE_SERVICE_HOST", "10.0.0.1"),
        ("BASTIDE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
    ];
    loaded(&Given { file: "", variables: &variables, flags: &[] }).unwrap();
}

#[test]
fn test_mode_is_a_flag_alone_or_a_one_in_the_environment_and_off_by_default() {
    let mode = |variables: &[(&str, &str)], flags: &[&str]| {
        loaded(&Given { file: "", variables, flags }).map(|config| config.test_mode)
    };
    assert!(!mode(&[], &[]).unwrap());
    assert!(mode(&[("BASTIDE_TEST_MODE", "1")], &[]).unwrap());
    assert!(!mode(&[("BASTIDE_TEST_MODE", "0")], &[]).unwrap());
    assert!(mode(&[], &["--test-mode"]).unwrap());
    assert!(mode(&[], &["--test-mode", "--metrics", "off"]).unwrap());
    assert!(!mode(&[("BASTIDE_TEST_MODE", "1")], &["--test-mode", "false"]).unwrap());
    assert!(mode(&[("BASTIDE_TEST_MODE", "maybe")], &[]).is_err());
}

#[test]
fn a_secret_shows_in_no_log() {
    let url = "smtps://me:hunter2@mail.example";
    let config = loaded(&file(&format!("[mail]\nsmtp_url = '{url}'"))).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    assert_eq!(config.mail.smtp_url.unwrap().reveal(), url);
}

#[test]
fn without_root_everything_is_below_home() {
    let environment = Environment { home: Some("/home/me".into()), ..Environment::default() };
    let config = load(&Flags::default(), &environment).unwrap();
    assert_eq!(config.data_dir, PathBuf::from("/home/me/.local/share/bastide"));
}

#[test]
fn the_table_has_every_setting_and_no_other() {
    let secret: super::Secret = serde_json::from_str("\"x\"").unwrap();
    let everything = Config {
        public_url: Some(String::new()),
        rt_public_url: Some(String::new()),
        rt_listen: Some(super::Listen::default()),
        tls_cert: Some("x".into()),
        tls_key: Some("x".into()),
        templates_dir: Some("x".into()),
        disk: super::Disk {
            pool_gb: Some(1),
            io_bytes_per_second: Some(1),
            io_operations_per_second: Some(1),
            ..super::Disk::default()
        },
        ports: super::Ports { domain: Some("x".into()), ..super::Ports::default() },
        pool: super::PoolDefaults { max_sandboxes: Some(1) },
        billing: super::Billing {
            return_url: Some(String::new()),
            stripe_key_file: Some("x".into()),
            stripe_webhook_secret_file: Some("x".into()),
            ..super::Billing::default()
        },
        workspaces: super::Workspaces {
            url: Some(String::new()),
            s3_endpoint: Some(String::new()),
            ..super::Workspaces::default()
        },
        secrets: super::Secrets {
            master_key_file: Some("x".into()),
            aws_region: Some(String::new()),
            aws_endpoint: Some(String::new()),
            ..super::Secrets::default()
        },
        images: super::Images { docker_config: Some("x".into()), ..super::Images::default() },
        mail: super::MailSettings {
            smtp_url: Some(secret.clone()),
            ses_region: Some(String::new()),
            ses_endpoint: Some(String::new()),
            ses_access_key_id: Some(String::new()),
            ses_secret_access_key: Some(secret.clone()),
            ..super::MailSettings::default()
        },
        oidc: super::OidcSettings {
            issuer: Some(String::new()),
            audience: Some(String::new()),
            jwks_url: Some(String::new()),
        },
        database_url: Some(secret.clone()),
        signing_key_file: Some("x".into()),
        code: super::Code {
            spec: Some(String::new()),
            api_base: Some(String::new()),
            ..super::Code::default()
        },
        ..Config::default()
    };
    let whole = ["policies", "hosts", "quotas", "pools", "warm"];
    let mut keys = BTreeSet::new();
    for (key, value) in toml::Table::try_from(everything).unwrap() {
        match value {
            toml::Value::Table(inner) if !whole.contains(&key.as_str()) => {
                keys.extend(inner.keys().map(|child| format!("{key}.{child}")));
            }
            _ => {
                keys.insert(key);
            }
        }
    }
    let listed: BTreeSet<String> = SETTINGS.iter().map(|setting| setting.key.into()).collect();
    assert_eq!(keys, listed);
}

#[test]
fn the_documentation_lists_every_setting() {
    let text = include_str!("../../../../docs/configuration.md");
    for setting in SETTINGS {
        let row = setting.row();
        assert!(text.lines().any(|line| line == row), "docs/configuration.md lacks:\n{row}");
    }
}
