//! How long and how much: every bound that a session can be given, with its default. The bounds that
//! nobody should change are beside the code that keeps them.

use std::time::Duration;

/// The bounds of a session. Tests make them smaller.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Until a connection to the model stands.
    pub connect: Duration,
    /// For the head of an answer and between two pieces of it.
    pub idle: Duration,
    /// For a whole answer.
    pub answer: Duration,
    /// How often a model that fails before it said anything is asked again.
    pub retries: u32,
    /// The first wait before that; it doubles.
    pub back_off: Duration,
    /// The longest wait, also of what the model asks for.
    pub back_off_max: Duration,
    /// Answers of the model in one turn.
    pub steps: u32,
    /// Tokens that one turn may use, read and written, of all its agents.
    pub turn_tokens: u64,
    /// What the model can read; the conversation is made shorter before it gets there.
    pub context_tokens: u64,
    /// What one answer may have.
    pub output_tokens: u64,
    /// How long a command may run that does not say how long.
    pub command: Duration,
    /// How long any command may run.
    pub command_max: Duration,
    /// How long a tool of a server may take.
    pub mcp_call: Duration,
    /// How long a server of tools may take to be ready.
    pub mcp_start: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            idle: Duration::from_secs(180),
            answer: Duration::from_secs(1200),
            retries: 4,
            back_off: Duration::from_millis(500),
            back_off_max: Duration::from_secs(60),
            steps: 200,
            turn_tokens: 20_000_000,
            context_tokens: 128_000,
            output_tokens: 16_384,
            command: Duration::from_secs(120),
            command_max: Duration::from_secs(1800),
            mcp_call: Duration::from_secs(120),
            mcp_start: Duration::from_secs(30),
        }
    }
}
