//! How many calls of one key run at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Key = [u8; 32];

pub(super) struct Permits {
    max: u32,
    running: Arc<Mutex<HashMap<Key, u32>>>,
}

/// One call runs while this lives.
#[derive(Debug)]
pub(super) struct Permit {
    key: Key,
    running: Arc<Mutex<HashMap<Key, u32>>>,
}

impl Permits {
    pub(super) fn new(max: u32) -> Self {
        Self { max, running: Arc::default() }
    }

    pub(super) fn take(&self, key: Key) -> Result<Permit, String> {
        let mut running = lock(&self.running);
        let count = running.entry(key).or_default();
        if *count >= self.max {
            return Err(format!("{} calls of this key run already; wait for one", self.max));
        }
        *count += 1;
        Ok(Permit { key, running: Arc::clone(&self.running) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        if let Some(count) = running.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.key);
            }
        }
    }
}

fn lock(running: &Mutex<HashMap<Key, u32>>) -> MutexGuard<'_, HashMap<Key, u32>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_so_many_and_gets_them_back() {
        let permits = Permits::new(2);
        let (one, two) = ([1; 32], [2; 32]);
        let held = [permits.take(one).unwrap(), permits.take(one).unwrap()];
        assert!(permits.take(one).unwrap_err().contains("2 calls"));
        let other = permits.take(two).unwrap();
        drop(held);
        drop(other);
        assert!(permits.running.lock().unwrap().is_empty());
        permits.take(one).unwrap();
    }
}
