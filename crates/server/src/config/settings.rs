//! The names of all settings, said once: the file, the variables, the flags and
//! `docs/configuration.md` follow from this table.

mod code;

use crate::config::setting::{Kind, Setting, text, value};

/// All of them, in the order of the documentation.
pub const SETTINGS: &[Setting] = &{
    let mut all = [FIRST[0]; FIRST.len() + code::SETTINGS.len()];
    let mut next = 0;
    while next < all.len() {
        let of_code = next.checked_sub(FIRST.len());
        all[next] = match of_code {
            None => FIRST[next],
            Some(index) => code::SETTINGS[index],
        };
        next += 1;
    }
    all
};

const FIRST: &[Setting] = &[
    text(
        "listen",
        "ADDR:PORT",
        "`127.0.0.1:8080`",
        "Where to listen; several with commas (in the file also an array)",
    ),
    text(
        "data_dir",
        "DIR",
        "`/var/lib/bastide`, or `~/.local/share/bastide` when not root",
        "Everything that is kept: sandboxes, templates, the database, the operator's key",
    ),
    text(
        "public_url",
        "URL",
        "the first `listen` address",
        "How clients reach this server; shown as `endpoint` and `host_port`",
    ),
    text(
        "rt_public_url",
        "URL",
        "`public_url` as `ws`/`wss`",
        "How clients reach the WebSockets of sessions",
    ),
    text(
        "rt_listen",
        "ADDR:PORT",
        "none",
        "Where to listen for the WebSockets of sessions and nothing else; `listen` takes them too",
    ),
    value(
        "rt_ping_seconds",
        "SECONDS",
        "`30`",
        "How often clients of sessions are pinged; one that said nothing since the last ping is let go",
    ),
    text(
        "tls_cert",
        "FILE",
        "none",
        "Certificate chain (PEM); with `tls_key` the server speaks HTTPS",
    ),
    text("tls_key", "FILE", "none", "Private key (PEM) of `tls_cert`"),
    text("log.format", "FORMAT", "`pretty`", "`pretty` for people, `json` for machines"),
    text(
        "log.level",
        "LEVEL",
        "`info`",
        "`error`, `warn`, `info`, `debug`, `trace`, or per part: `info,engine=debug`",
    ),
    value(
        "policies",
        "TABLE",
        "`none`, `default`, `open`",
        "Named egress policies: a list of `host`, `*.host`, `cidr` or `public`, each with an optional `:port`. `default` is that of sandboxes that name none, and allows nothing until it is set",
    ),
    value(
        "hosts",
        "TABLE",
        "none",
        "Addresses of names for egress, before this machine's resolver is asked: `{ \"git.corp.example\" = [\"10.20.0.7\"] }`. They allow nothing by themselves",
    ),
    value(
        "quotas",
        "TABLE",
        "003's for `free`, none for `operator`",
        "Per plan: `persistent_max`, `ephemeral_max`, `disk_gb_per_tier_max`, `workspace_gib_max`",
    ),
    value("ceiling.vcpu", "N", "`8`", "The most `vcpu` that others than the operator get"),
    value(
        "ceiling.memory_mib",
        "MIB",
        "`16384`",
        "The most `memory_mib` that others than the operator get",
    ),
    value("disk.gb_default", "GIB", "`5`", "`disk_gb` of a sandbox that does not say it"),
    value("disk.gb_max", "GIB", "`20`", "The largest `disk_gb`; more is 400"),
    text(
        "disk.kind",
        "KIND",
        "`auto`",
        "What disks are: `btrfs`, `image`, `plain` (without a limit), or the first of them that works here; decided at the first start of a data directory",
    ),
    value(
        "disk.pool_gb",
        "GIB",
        "most of what is free",
        "Size of the file that holds all sandboxes, where the file system needs one",
    ),
    value(
        "disk.reserve_mib",
        "MIB",
        "`1024`",
        "What the host keeps free; with less, create answers 507 and sandboxes find their disks full",
    ),
    value(
        "disk.io_bytes_per_second",
        "BYTES",
        "no limit",
        "How much each sandbox may read from its disk in a second, and write to it; see docs/limits.md for what is not counted",
    ),
    value(
        "disk.io_operations_per_second",
        "N",
        "no limit",
        "How often each sandbox may read from its disk in a second, and write to it",
    ),
    value(
        "pool.max_sandboxes",
        "N",
        "no limit",
        "Sandboxes with compute at once in each pool; beyond it create answers 409",
    ),
    value(
        "pools",
        "ARRAY",
        "one pool `local` of kind `linux`",
        "Places that run sandboxes: `name`, `kind` (`linux`, or `unreachable` for drills), `data_dir`, `max_sandboxes`",
    ),
    value("warm", "TABLE", "none", "Sandboxes kept ready, per template: `{ standard = 4 }`"),
    text(
        "templates_dir",
        "DIR",
        "the built-in ones",
        "Where template definitions (`NAME.toml`) are",
    ),
    value(
        "host_template_for_all",
        "BOOL",
        "`false`",
        "Lets owners other than the operator use the template `host`",
    ),
    value(
        "images.allowed_registries",
        "ARRAY",
        "none",
        "Where owners other than the operator may have `image` pulled from: `ghcr.io`, `ghcr.io/acme`, `*`. Those named may have private addresses",
    ),
    text(
        "images.docker_config",
        "FILE",
        "none",
        "Logins for registries, as `docker login` writes them; used for whoever may pull",
    ),
    value("images.plain_http", "ARRAY", "those on loopback", "Registries spoken to without TLS"),
    value("images.max_gb", "GIB", "`20`", "The largest image, unpacked"),
    value(
        "images.pull_timeout_seconds",
        "SECONDS",
        "`600`",
        "How long a pull for a create may take; what was fetched is kept for the next try",
    ),
    value("limits.json_bytes", "BYTES", "`1048576`", "The largest JSON body; more is 413"),
    value("limits.file_bytes", "BYTES", "`5368709120`", "The largest file upload; more is 413"),
    value(
        "limits.archive_bytes",
        "BYTES",
        "`21474836480`",
        "The largest tar stream for `files/import`; more is 413",
    ),
    value("limits.connections", "N", "`4096`", "Connections at once; more wait to be accepted"),
    value(
        "limits.header_timeout_seconds",
        "SECONDS",
        "`30`",
        "How long a client may take to send a request's headers, and how long a connection may idle between requests",
    ),
    value(
        "limits.body_timeout_seconds",
        "SECONDS",
        "`60`",
        "How long a client may go without sending any more of a body (then 408), or without reading any more of an answer",
    ),
    value(
        "limits.catalogue_per_minute",
        "N",
        "`600`",
        "How often a tenant may ask for the catalogue of agents in a minute; more is 429",
    ),
    text(
        "ports.domain",
        "DOMAIN",
        "`sandbox.localhost` when `public_url` is of this machine, else none",
        "Ports of sandboxes are reached at `{port}-{id}.DOMAIN`; needs a wildcard DNS name, and certificate",
    ),
    value(
        "ports.silence_seconds",
        "SECONDS",
        "`300`",
        "How long a port of a sandbox may say nothing in the middle of a request (then 504)",
    ),
    value(
        "drain_seconds",
        "SECONDS",
        "`30`",
        "How long requests in flight may go on after SIGTERM",
    ),
    value(
        "sweep_seconds",
        "SECONDS",
        "`10`",
        "How often the reaper looks at all sandboxes, besides its timers",
    ),
    text(
        "metrics",
        "WHO",
        "`open`",
        "Who may read `/metrics`: `open`, `operator` (with its key), `off`",
    ),
    value(
        "audit.keep_days",
        "DAYS",
        "`400`",
        "How long entries of the audit log are kept; `0` for ever",
    ),
    value(
        "meter_seconds",
        "SECONDS",
        "`60`",
        "How often what sandboxes use is counted, besides at their end",
    ),
    value(
        "auth.attempts_per_minute",
        "N",
        "`60`",
        "Requests a minute that one client address may send to sign up and sign in; more is 429",
    ),
    value("auth.token_seconds", "SECONDS", "`3600`", "How long an account's token is good"),
    text("mail.from", "ADDRESS", "`Bastide <bastide@localhost>`", "From whom mails with codes are"),
    text(
        "mail.smtp_url",
        "URL",
        "none: a file for each mail in `DATA/mail`",
        "Server that takes our mail: `smtps://user:password@host`, or `smtp://host?tls=required`. Better in the file or a variable than as a flag, which `ps` shows",
    ),
    text("mail.ses_region", "REGION", "none", "Region of Amazon SES, to send mail by its API"),
    text("mail.ses_endpoint", "URL", "that of the region", "Another address of that API"),
    text("mail.ses_access_key_id", "ID", "none", "Whom SES knows us as"),
    text(
        "mail.ses_secret_access_key",
        "SECRET",
        "none",
        "What proves it. Better in the file or a variable than as a flag, which `ps` shows",
    ),
    value(
        "mail.log_codes",
        "BOOL",
        "`false`",
        "Writes codes into the log too, at `info`: for trying things out alone",
    ),
    text(
        "oidc.issuer",
        "URL",
        "none",
        "Issuer of OpenID Connect tokens that are taken beside ours; its keys are found by discovery",
    ),
    text(
        "oidc.audience",
        "TEXT",
        "none",
        "Whom such tokens must be for; required with `oidc.issuer`",
    ),
    text(
        "oidc.jwks_url",
        "URL",
        "by discovery",
        "Where the issuer publishes its keys, if it cannot be discovered",
    ),
    text(
        "database_url",
        "URL",
        "`DATA/bastide.db` (SQLite)",
        "PostgreSQL instead: `postgresql://user:password@host/name`. Better in the file or a variable than as a flag, which `ps` shows",
    ),
    text(
        "signing_key_file",
        "FILE",
        "`DATA/signing.key`, made at first start",
        "At least 32 random bytes that sign accounts' tokens and links to ports",
    ),
    value(
        "trusted_proxies",
        "ARRAY",
        "none",
        "Networks of proxies in front whose `X-Forwarded-For` is believed: `[\"10.0.0.0/8\"]`",
    ),
    Setting {
        key: "test_mode",
        kind: Kind::Switch,
        value_name: "BOOL",
        default: "`false`",
        help: "Answers sign-ups of `*@e2a-qa.test` with their code instead of sending it",
    },
    text(
        "llm.allowed_base_urls",
        "URLS",
        "none: HTTPS at public addresses only",
        "Origins where models may be beside those (`http://10.20.0.9:4000`), for gateways inside a network; several with commas (in the file also an array)",
    ),
    value(
        "llm.default_models",
        "TABLE",
        "`claude-sonnet-4-5`, `gpt-5`, `gemini-2.5-pro`, `deepseek-chat`",
        "Of sessions that name no model, by vendor: `anthropic`, `openai`, `google` and `deepseek`; one that is left out stays",
    ),
    text(
        "persistence.allowed_urls",
        "URLS",
        "none: HTTPS at public addresses only",
        "Origins where `persistence_url` may be beside those (`http://10.20.0.9:7000`); several with commas (in the file also an array)",
    ),
    text(
        "secrets.place",
        "PLACE",
        "`sealed`",
        "Where new bundles of secrets are kept: `sealed` in the database, or `aws` (Secrets Manager)",
    ),
    text(
        "secrets.master_key_file",
        "FILE",
        "`DIR/master.key`",
        "The keys that seal secrets and environments; `BASTIDE_MASTER_KEY` (hex) wins over it",
    ),
    text(
        "secrets.aws_region",
        "REGION",
        "none",
        "Of AWS Secrets Manager, for `secrets.place = aws`",
    ),
    text("secrets.aws_endpoint", "URL", "AWS's own", "Another server that speaks its API"),
    text(
        "secrets.aws_prefix",
        "PREFIX",
        "`bastide`",
        "What the names of secrets there begin with; the tenant's id comes next",
    ),
    text(
        "workspaces.url",
        "URL",
        "`DIR/blobs`",
        "Where workspaces are kept: `file:///DIR`, or `s3://BUCKET/PREFIX` with `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`",
    ),
    text("workspaces.s3_region", "REGION", "`us-east-1`", "Of the bucket"),
    text("workspaces.s3_endpoint", "URL", "AWS's own", "Another server that speaks S3"),
    value("workspaces.link_seconds", "SECONDS", "`3600`", "How long links to files work"),
    value(
        "billing.enforce",
        "BOOL",
        "`false`",
        "Without credit nothing starts (402), and what runs ends with `credits_exhausted`",
    ),
    value(
        "billing.prices",
        "TABLE",
        "nothing costs anything",
        "In millionths of a cent a second: `cpu_second` used, `sandbox_second` running, `memory_gib_second` and `disk_gib_second` allotted",
    ),
    value("billing.signup_credit_cents", "CENTS", "`0`", "What a new owner is given"),
    value("billing.topup_min_cents", "CENTS", "`100`", "The least payment"),
    text("billing.currency", "CODE", "`usd`", "Of all amounts"),
    text("billing.return_url", "URL", "`public_url`", "Where payers return"),
    text("billing.stripe_url", "URL", "Stripe's own", "Another server that speaks its API"),
    text(
        "billing.stripe_key_file",
        "FILE",
        "none: no payments",
        "The secret key (`sk_…`), on its first line",
    ),
    text(
        "billing.stripe_webhook_secret_file",
        "FILE",
        "none",
        "What signs `POST /v1/billing/webhook` (`whsec_…`), on its first line",
    ),
];
