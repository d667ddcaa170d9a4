//! One task and its end: what the agent says goes out as text, the rest is left out or told on the side.

use std::io::{self, Write};

use events::{ContentPart, ItemKind, ItemStatus};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::protocol::{Item, Said, Start, TurnStatus};
use crate::session::{Session, Surroundings};
use crate::voice::{QUEUE, Voice};

/// Carries out a task. Text goes to `out`; tools, failures and the id of the session to `aside`.
pub async fn run(
    start: &Start,
    task: &str,
    around: Surroundings,
    cancel: CancellationToken,
    (out, aside): (&mut (dyn Write + Send), &mut (dyn Write + Send)),
) -> io::Result<bool> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let voice = Voice::new(sender);
    let work = async {
        let mut session = Session::open(start, around, voice).await?;
        let status = session.turn(task.to_owned(), cancel).await;
        let id = session.id().to_owned();
        session.close().await;
        Ok((status, id))
    };
    let (printed, worked) = tokio::join!(print(receiver, out, aside), work);
    printed?;
    match worked {
        Ok((status, id)) => {
            writeln!(aside, "[session {id}]")?;
            Ok(status == TurnStatus::Completed)
        }
        Err(message) => {
            let message: String = message;
            writeln!(aside, "{message}")?;
            Ok(false)
        }
    }
}

async fn print(
    mut said: mpsc::Receiver<Said>,
    out: &mut (dyn Write + Send),
    aside: &mut (dyn Write + Send),
) -> io::Result<()> {
    while let Some(one) = said.recv().await {
        match one {
            Said::ItemCompleted { item } => item_ended(&item, out, aside)?,
            Said::Error { message, code } => writeln!(aside, "error: {message} ({code})")?,
            Said::Ready { .. }
            | Said::Refused { .. }
            | Said::ItemStarted { .. }
            | Said::ItemDelta { .. }
            | Said::PermissionRequested { .. }
            | Said::PermissionWithdrawn { .. }
            | Said::QuestionRequested { .. }
            | Said::QuestionWithdrawn { .. }
            | Said::TurnOver { .. } => {}
        }
    }
    Ok(())
}

fn item_ended(item: &Item, out: &mut dyn Write, aside: &mut dyn Write) -> io::Result<()> {
    for part in &item.content {
        match part {
            // What agents say to the planner is not for the user.
            ContentPart::Text { text } if item.parent.is_none() => {
                writeln!(out, "{}", text.trim_end())?;
                out.flush()?;
            }
            ContentPart::ToolCall { name, .. } if item.kind == ItemKind::ToolCall => {
                let how = if item.status == ItemStatus::Completed { "" } else { ": failed" };
                writeln!(aside, "[{name}{how}]")?;
            }
            ContentPart::Status { label, detail: Some(detail) } if label == "api_retry" => {
                writeln!(aside, "[{label} {detail}]")?;
            }
            ContentPart::Text { .. }
            | ContentPart::Json { .. }
            | ContentPart::ToolCall { .. }
            | ContentPart::ToolResult { .. }
            | ContentPart::FileRef { .. }
            | ContentPart::Reasoning { .. }
            | ContentPart::Image { .. }
            | ContentPart::Status { .. } => {}
        }
    }
    Ok(())
}
