//! `bastide template pull` and `import`, and what they need to know about registries.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use driver_linux::template::{
    Credentials, ImageAccess, Login, TemplateStore, import as read, pull as fetch,
};
use model::TemplateName;

use super::progress::Shown;
use super::show;
use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bastide template pull docker.io/library/alpine:3.20 --name alpine
  bastide template pull ghcr.io/me/app:1 --docker-config ~/.docker/config.json")]
pub(crate) struct Pull {
    /// Such as ghcr.io/a/b:main; digests are better than tags
    reference: String,
    /// What to call it; default: a name made from its digest
    #[arg(long)]
    name: Option<TemplateName>,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  docker save app:1 | bastide template import app -
  bastide template import app image.tar --image app:1")]
pub(crate) struct Import {
    /// What to call it
    name: TemplateName,
    /// The archive, or - for stdin
    archive: PathBuf,
    /// Which of several images in it, by its tag
    #[arg(long, value_name = "TAG")]
    image: Option<String>,
}

/// How registries are reached.
#[derive(Debug, Args)]
pub(crate) struct Access {
    /// Logins for registries, as `docker login` writes them
    #[arg(long, value_name = "FILE")]
    docker_config: Option<PathBuf>,
    /// Log in as this user; the password is read from --registry-password-file
    #[arg(long, value_name = "NAME", requires = "registry_password_file")]
    registry_user: Option<String>,
    /// A file that holds the password
    #[arg(long, value_name = "FILE", requires = "registry_user")]
    registry_password_file: Option<PathBuf>,
    /// A registry (host or host:port) that is spoken to without TLS; may be repeated
    #[arg(long, value_name = "REGISTRY")]
    plain_http: Vec<String>,
}

impl Access {
    pub(super) fn resolve(&self) -> Result<ImageAccess, Failure> {
        let credentials = match (&self.registry_user, &self.registry_password_file) {
            (Some(user), Some(path)) => {
                let password = std::fs::read_to_string(path).map_err(|error| {
                    Failure::new(format!("cannot read {}: {error}", path.display()))
                })?;
                let password = password.trim_end_matches(['\r', '\n']).to_owned();
                Credentials::of_login(Login { user: user.clone(), password })
            }
            _ => match &self.docker_config {
                Some(path) => Credentials::from_docker_config(path)?,
                None => Credentials::default(),
            },
        };
        let plain_http = self.plain_http.clone();
        Ok(ImageAccess { credentials, plain_http, ..ImageAccess::default() })
    }
}

pub(super) async fn pull(
    store: &TemplateStore,
    args: Pull,
    json: bool,
) -> Result<ExitCode, Failure> {
    let access = args.access.resolve()?;
    let mut shown = Shown::new(json);
    let built =
        fetch(store, &args.reference, args.name, &access, &mut |event| shown.event(&event)).await;
    shown.finish();
    show::made(&built?, json)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn import(store: &TemplateStore, args: &Import, json: bool) -> Result<(), Failure> {
    let reader: Box<dyn Read> = if args.archive.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let path = args.archive.display();
        let file = File::open(&args.archive);
        Box::new(file.map_err(|error| Failure::new(format!("cannot read {path}: {error}")))?)
    };
    let mut shown = Shown::new(json);
    let image = args.image.as_deref();
    let built = read(store, reader, image, args.name.clone(), &mut |event| shown.event(&event));
    shown.finish();
    show::made(&built?, json)
}
