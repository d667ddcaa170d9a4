//! Sessions against the real agent daemon with its mock agent, in the fake driver's sandboxes, over a real
//! WebSocket.

mod life;
mod loss;
mod parts;
mod resume;
mod told;
