//! Which port of which sandbox a request is for, read off its host or its path.

use axum::extract::Request;
use axum::http::header::HOST;
use model::{Error, SandboxRef};

use super::trouble::Trouble;
use crate::app::{App, PublicAddress};

/// A port, and how it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sandbox: SandboxRef,
    pub(super) port: u16,
    pub(super) form: Form,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// `{port}-{id}.DOMAIN`, as the client wrote it.
    Host { authority: String },
    /// `/v1/sandboxes/{id}/ports/{port}`, as the client wrote it.
    Path { prefix: String },
}

impl Place {
    /// `Ok(None)`: the host is none of a sandbox. What looks like one and is not must not reach
    /// the API: a page there would be taken for a page of the API's.
    pub(super) fn of_host(app: &App, request: &Request) -> Result<Option<Self>, Trouble> {
        let Some(domain) = &app.preview_domain else { return Ok(None) };
        let mut hosts = request.headers().get_all(HOST).iter();
        let named = hosts.next().map(|host| host.to_str().unwrap_or("?"));
        let target = request.uri().authority().map(|authority| authority.as_str());
        let ours = |host: &str| domain.label(host).is_some();
        // Two hosts would leave it to whoever reads which of them counts.
        if hosts.next().is_some() || target.is_some_and(|target| Some(target) != named) {
            let any = request.headers().get_all(HOST);
            let mut all = any.iter().filter_map(|host| host.to_str().ok()).chain(target);
            return if all.any(ours) { Err(Trouble::TwoHosts) } else { Ok(None) };
        }
        let Some(authority) = named else { return Ok(None) };
        let Some(label) = domain.label(authority) else { return Ok(None) };
        let (port, id) = label.split_once('-').ok_or(Trouble::UnknownHost)?;
        let port = port_number(port).map_err(|_| Trouble::UnknownHost)?;
        let id = id.parse().map_err(|_| Trouble::UnknownHost)?;
        let form = Form::Host { authority: authority.to_owned() };
        Ok(Some(Self { sandbox: SandboxRef::Id(id), port, form }))
    }

    /// Of `/v1/sandboxes/{id}/ports/{port}` and what is below it.
    pub(super) fn of_path(path: &str) -> Result<Self, Error> {
        let mut parts = path.splitn(7, '/').skip(3);
        let (id, port) = (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default());
        let sandbox: SandboxRef = id.parse()?;
        let prefix = format!("/v1/sandboxes/{id}/ports/{port}");
        Ok(Self { sandbox, port: port_number(port)?, form: Form::Path { prefix } })
    }

    /// The path as the sandbox sees it.
    pub(super) fn inner_path<'a>(&self, path: &'a str) -> &'a str {
        let inner = match &self.form {
            Form::Host { .. } => path,
            Form::Path { prefix } => path.strip_prefix(prefix.as_str()).unwrap_or(path),
        };
        if inner.is_empty() { "/" } else { inner }
    }

    /// Where the client finds `path` (as the client wrote it) of this place.
    pub(super) fn url(&self, address: &PublicAddress, path: &str, query: Option<&str>) -> String {
        let base = match &self.form {
            Form::Host { authority } => format!("{}://{authority}", address.scheme()),
            // Never `//host`: the prefix comes first.
            Form::Path { .. } => String::new(),
        };
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        format!("{base}{path}{query}")
    }

    /// Where the prefix of the name is allowed, the browser holds whoever sets it to its meaning.
    pub(super) fn cookie_name(&self, address: &PublicAddress) -> &'static str {
        match (&self.form, address.is_https()) {
            (Form::Host { .. }, true) => "__Host-bastide-port",
            (Form::Path { .. }, true) => "__Secure-bastide-port",
            (Form::Host { .. } | Form::Path { .. }, false) => "bastide-port",
        }
    }

    pub(super) fn cookie_path(&self) -> &str {
        match &self.form {
            Form::Host { .. } => "/",
            Form::Path { prefix } => prefix,
        }
    }
}

/// 1 to 65535.
pub(crate) fn port_number(text: &str) -> Result<u16, Error> {
    let digits = text.bytes().all(|c| c.is_ascii_digit());
    let port = text.parse().ok().filter(|port| *port > 0 && digits);
    port.ok_or_else(|| Error::invalid("port", format!("must be 1 to 65535: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_sandbox_and_port_and_keeps_the_rest_as_it_is() {
        let id = "sb-01jabcdefghjkmnpqrstvwxyz0";
        for (rest, inner) in [("", "/"), ("/", "/"), ("/a%2Fb//c/../d", "/a%2Fb//c/../d")] {
            let path = format!("/v1/sandboxes/{id}/ports/8000{rest}");
            let place = Place::of_path(&path).unwrap();
            assert_eq!((place.sandbox.to_string().as_str(), place.port), (id, 8000));
            assert_eq!(place.inner_path(&path), inner);
        }
        assert_eq!(Place::of_path("/v1/sandboxes/demo/ports/1/x").unwrap().port, 1);
        for bad in ["0", "65536", "+80", "80a", "", "-1"] {
            assert!(Place::of_path(&format!("/v1/sandboxes/demo/ports/{bad}/")).is_err(), "{bad}");
        }
    }
}
