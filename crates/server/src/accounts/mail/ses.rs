//! Amazon's Simple Email Service (API v2, `SendEmail`), signed with Signature Version 4.

use anyhow::{Context, Result, bail};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Request, Uri};
use bytes::Bytes;
use jiff::Timestamp;
use model::Email;
use ring::{digest, hmac};
use serde_json::json;

use crate::config::{MailSettings, Secret};
use crate::https::Https;

const PATH: &str = "/v2/email/outbound-emails";

pub(super) struct Ses {
    https: Https,
    endpoint: Uri,
    region: String,
    access_key_id: String,
    secret_access_key: Secret,
}

impl Ses {
    pub(super) fn new(settings: &MailSettings, region: &str) -> Result<Self> {
        let default = format!("https://email.{region}.amazonaws.com");
        let endpoint = settings.ses_endpoint.as_ref().unwrap_or(&default);
        Ok(Self {
            https: Https::new()?,
            endpoint: endpoint.parse().context("mail.ses_endpoint: not a URL")?,
            region: region.to_owned(),
            access_key_id: settings
                .ses_access_key_id
                .clone()
                .context("mail.ses_access_key_id: required with mail.ses_region")?,
            secret_access_key: settings
                .ses_secret_access_key
                .clone()
                .context("mail.ses_secret_access_key: required with mail.ses_region")?,
        })
    }

    pub(super) async fn send(
        &self,
        from: &str,
        to: &Email,
        subject: &str,
        text: &str,
    ) -> Result<()> {
        let body = json!({
            "FromEmailAddress": from,
            "Destination": { "ToAddresses": [to.as_str()] },
            "Content": { "Simple": {
                "Subject": { "Data": subject, "Charset": "UTF-8" },
                "Body": { "Text": { "Data": text, "Charset": "UTF-8" } },
            } },
        });
        let body = Bytes::from(body.to_string());
        let authority = self.endpoint.authority().context("mail.ses_endpoint: has no host")?;
        let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let uri = format!("{}{PATH}", self.endpoint.to_string().trim_end_matches('/'));
        let request = Request::post(uri)
            .header(HOST, authority.as_str())
            .header(CONTENT_TYPE, "application/json")
            .header("x-amz-date", &stamp)
            .header("authorization", self.authorization(authority.as_str(), &stamp, &body))
            .body(body)
            .context("write a request to SES")?;
        let answer = self.https.send(request).await.context("reach SES")?;
        if !answer.status().is_success() {
            // Its text names what is wrong, and holds nothing of ours but the address.
            let text = String::from_utf8_lossy(answer.body());
            let text: String = text.chars().take(300).collect();
            bail!("SES answered {}: {text}", answer.status());
        }
        Ok(())
    }

    fn authorization(&self, host: &str, stamp: &str, body: &[u8]) -> String {
        let day = &stamp[..8];
        let scope = format!("{day}/{}/ses/aws4_request", self.region);
        let signed = "content-type;host;x-amz-date";
        let canonical = format!(
            "POST\n{PATH}\n\ncontent-type:application/json\nhost:{host}\nx-amz-date:{stamp}\n\n\
             {signed}\n{}",
            hex(digest::digest(&digest::SHA256, body).as_ref())
        );
        let hashed = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashed}");
        let first = format!("AWS4{}", self.secret_access_key.reveal()).into_bytes();
        let parts = [day, &self.region, "ses", "aws4_request", &text];
        let tag = parts.iter().fold(first, |key, part| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
            hmac::sign(&key, part.as_bytes()).as_ref().to_vec()
        });
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature={}",
            self.access_key_id,
            hex(&tag)
        )
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
