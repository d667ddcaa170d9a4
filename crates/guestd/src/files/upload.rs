//! `POST /files`: one file as octets, or several as a form. Parents are made; everything belongs to
//! the client's user.
//!
//! A new file gives exactly three events to those who watch: create, chmod (its owner), write.

use std::sync::Arc;

use bytes::Bytes;
use guest_proto::pieces::FileWriter;
use http::header;
use serde::Serialize;

use super::download::account;
use super::drain::drain;
use super::encoding::Decompressor;
use super::metadata::{self, Metadata};
use super::multipart::{Form, Part};
use super::query::Query;
use super::signature::{self, Signed};
use super::target::{create, full, unwritten};
use crate::accounts::Account;
use crate::http::{BodyReader, Request, Response, json};
use crate::paths;
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Files in one form.
const FILES_MAX: usize = 1024;

/// What is answered for each file.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    name: String,
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
}

pub(crate) async fn upload(state: Arc<State>, request: Request) -> Result<Response> {
    let mut query = Query::of(&request);
    let path = query.take("path");
    let username = query.take("username");
    signature::check(
        &state,
        &request,
        &Signed {
            operation: "write",
            path: path.as_deref().unwrap_or(""),
            username: username.as_deref(),
            signature: query.take("signature").as_deref(),
            expiration: query.take("signature_expiration").as_deref(),
        },
    )?;
    let account = account(&state, &request, username.as_deref())?;
    let upload =
        Upload { metadata: metadata::of_headers(request.headers())?, state, account, path };
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or("").to_owned();
    let gzip = is_gzip(&request)?;
    let mut source = Source::new(BodyReader::new(request.into_body()), gzip);
    let written = if kind.starts_with("multipart/form-data") {
        upload.form(&kind, &mut source).await
    } else if kind.starts_with("application/octet-stream") {
        upload.octets(&mut source).await
    } else {
        let message = format!("content type '{kind}' is neither a form nor octets");
        Err(Refusal::new(Code::UnsupportedMedia, message))
    };
    // Also after success: what follows the end of a form or of gzip must be read.
    drain(&mut source.body).await;
    Ok(json(&written.map_err(full)?))
}

fn is_gzip(request: &Request) -> Result<bool> {
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    match encoding.map_or("identity", |value| value.to_str().unwrap_or("?")) {
        "" | "identity" => Ok(false),
        "gzip" | "x-gzip" => Ok(true),
        other => {
            let message = format!("content encoding '{other}' is not supported");
            Err(Refusal::new(Code::UnsupportedMedia, message))
        }
    }
}

struct Upload {
    state: Arc<State>,
    account: Account,
    path: Option<String>,
    metadata: Metadata,
}

impl Upload {
    async fn octets(&self, source: &mut Source) -> Result<Vec<Written>> {
        let path = self.path.as_deref().filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| Refusal::invalid("path is required for octets"))?;
        let path = self.state.resolve(path, &self.account);
        let mut writer = self.open(&path).await?;
        while let Some(piece) = source.next().await? {
            writer.write(piece).await.map_err(|error| unwritten(&error))?;
        }
        writer.finish().await.map_err(|error| unwritten(&error))?;
        Ok(vec![self.written(path)])
    }

    async fn form(&self, kind: &str, source: &mut Source) -> Result<Vec<Written>> {
        let mut form = Form::new(kind)?;
        let mut written: Vec<Written> = Vec::new();
        let mut writer: Option<FileWriter> = None;
        loop {
            let Some(part) = form.next_part()? else {
                let Some(piece) = source.next().await? else { break };
                form.feed(&piece);
                continue;
            };
            match part {
                Part::Begin { name, filename } if name == "file" => {
                    let path = self.path_of(filename)?;
                    if written.iter().any(|written| written.path == path) {
                        let message =
                            format!("you cannot upload multiple files to the same path '{path}'");
                        return Err(Refusal::invalid(message));
                    }
                    if written.len() >= FILES_MAX {
                        return Err(Refusal::new(Code::TooLarge, "too many files in one request"));
                    }
                    writer = Some(self.open(&path).await?);
                    written.push(self.written(path));
                }
                // Other fields mean nothing.
                Part::Begin { .. } => {}
                Part::Data(bytes) => {
                    if let Some(writer) = &mut writer {
                        writer.write(bytes).await.map_err(|error| unwritten(&error))?;
                    }
                }
                Part::End => {
                    if let Some(writer) = writer.take() {
                        writer.finish().await.map_err(|error| unwritten(&error))?;
                    }
                }
            }
        }
        form.check_whole()?;
        Ok(written)
    }

    /// The path of the query, else the whole filename.
    fn path_of(&self, filename: Option<String>) -> Result<String> {
        let path = self.path.clone().filter(|path| !path.is_empty()).or(filename);
        let path = path.filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| Refusal::invalid("a part has no filename"))?;
        Ok(self.state.resolve(&path, &self.account))
    }

    async fn open(&self, path: &str) -> Result<FileWriter> {
        let (path, account) = (path.to_owned(), self.account.clone());
        let (metadata, is_root) = (self.metadata.clone(), self.state.is_root);
        let open = self.state.tasks.spawn_blocking(move || {
            let file = create(&path, &account, is_root)?;
            metadata::write(&file, &metadata)?;
            Ok(file)
        });
        let file = open.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))?;
        Ok(FileWriter::new(file))
    }

    fn written(&self, path: String) -> Written {
        written(path, self.metadata.clone())
    }
}

pub(super) fn written(path: String, metadata: Metadata) -> Written {
    Written { name: paths::split(&path).1.to_owned(), path, kind: "file", metadata }
}

/// The body of an upload, decompressed if need be.
struct Source {
    body: BodyReader,
    decompressor: Option<Decompressor>,
    compressed: Bytes,
}

impl Source {
    fn new(body: BodyReader, gzip: bool) -> Self {
        let decompressor = gzip.then(Decompressor::new);
        Self { body, decompressor, compressed: Bytes::new() }
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(decompressor) = &mut self.decompressor else { return self.body.next().await };
        loop {
            if self.compressed.is_empty() {
                let Some(piece) = self.body.next().await? else {
                    let last = decompressor.finish()?;
                    self.decompressor = None;
                    return Ok(Some(last).filter(|last| !last.is_empty()));
                };
                self.compressed = piece;
            }
            let plain = decompressor.feed(&mut self.compressed)?;
            if !plain.is_empty() {
                return Ok(Some(plain));
            }
        }
    }
}
