//! What every driver promises, as assertions.
