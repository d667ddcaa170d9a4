//! The command line from outside: its help texts as a contract, and the binary itself.

#[cfg(test)]
mod help;
#[cfg(test)]
mod usage;
