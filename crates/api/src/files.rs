//! Paths and answers of `/v1/sandboxes/{id}/files…` (000).

use model::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The kernel's own limit.
const PATH_BYTES_MAX: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "status": "uploaded" }))]
pub struct Uploaded {
    pub status: String,
}

/// Bytes as they are, in the description of the API only.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct Binary(pub Vec<u8>);

impl Uploaded {
    pub fn done() -> Self {
        Self { status: "uploaded".into() }
    }
}

/// Checks a path that a caller sent as `field`: absolute, no `..` component, no NUL.
pub fn check_path(field: &str, path: &str) -> Result<(), Error> {
    if path.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if !path.starts_with('/') {
        return Err(Error::invalid(field, format!("must be absolute (begin with /): {path:?}")));
    }
    if path.split('/').any(|component| component == "..") {
        return Err(Error::invalid(field, format!("must not contain ..: {path:?}")));
    }
    if path.contains('\0') {
        return Err(Error::invalid(field, "must not contain a NUL byte"));
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::invalid(field, format!("at most {PATH_BYTES_MAX} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
