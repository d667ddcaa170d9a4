//! Sends codes: over SMTP, by the HTTP interface of Amazon's SES, or, with nothing configured, as a
//! file each in the data directory.

mod directory;
mod ses;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::{AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use model::Email;
use tokio::time::timeout;

use self::directory::Directory;
use self::ses::Ses;
use crate::config::MailSettings;

/// From the connection to the last answer.
const SEND_MAX: Duration = Duration::from_secs(20);
const SUBJECT: &str = "Your code for Bastide";

pub(crate) struct Mailer {
    from: Mailbox,
    way: Way,
    log_codes: bool,
}

enum Way {
    Directory(Directory),
    Smtp(AsyncSmtpTransport<Tokio1Executor>),
    Ses(Ses),
}

impl Mailer {
    pub(crate) fn open(settings: &MailSettings, data_dir: &Path) -> Result<Self> {
        let way = match (&settings.smtp_url, &settings.ses_region) {
            (None, None) => Way::Directory(Directory::new(data_dir)),
            (Some(url), None) => {
                let smtp = AsyncSmtpTransport::<Tokio1Executor>::from_url(url.reveal());
                let smtp = smtp.map_err(|_| anyhow::anyhow!("mail.smtp_url: not one of ours"))?;
                Way::Smtp(smtp.timeout(Some(SEND_MAX)).build())
            }
            (None, Some(region)) => Way::Ses(Ses::new(settings, region)?),
            (Some(_), Some(_)) => bail!("mail.ses_region: not together with mail.smtp_url"),
        };
        let from = settings.from.parse().context("mail.from: not an address")?;
        Ok(Self { from, way, log_codes: settings.log_codes })
    }

    /// Hands a code over to whoever delivers it.
    pub(crate) async fn send_code(&self, to: &Email, code: &str) -> Result<()> {
        if self.log_codes {
            tracing::info!(%to, code, "a code for signing in");
        }
        let text = format!(
            "Your code is {code}\n\nIt works once, for ten minutes. If you did not ask for it, \
             somebody typed your address by mistake: there is nothing to do.\n"
        );
        let sent = async {
            match &self.way {
                Way::Directory(directory) => directory.put(self.message(to, text)?).await,
                Way::Smtp(smtp) => {
                    let sent = smtp.send(self.message(to, text)?).await;
                    sent.map(drop).context("hand a mail over by SMTP")
                }
                Way::Ses(ses) => ses.send(&self.from.to_string(), to, SUBJECT, &text).await,
            }
        };
        timeout(SEND_MAX, sent).await.context("send a mail: it took too long")?
    }

    fn message(&self, to: &Email, text: String) -> Result<Message> {
        let to: Mailbox = to.as_str().parse().context("write an address")?;
        let message = Message::builder().from(self.from.clone()).to(to).subject(SUBJECT);
        message.header(ContentType::TEXT_PLAIN).body(text).context("write a mail")
    }
}
