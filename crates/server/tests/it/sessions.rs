//! Sessions against the real agent daemon with its mock agent, in the fake driver's sandboxes, over a real
//! WebSocket.

mod clients;
mod cut_off;
mod double;
mod life;
mod loss;
mod metering;
mod parts;
mod race;
mod replicas;
mod resume;
mod told;
mod town;
