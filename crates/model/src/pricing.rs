//! What use costs. Money is integer cents; what is less than a cent is kept in micro-cents until it is one.

/// Micro-cents in a cent.
pub const MICRO_CENTS: i64 = 1_000_000;

/// Prices of what a sandbox uses, in millionths of a cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// A second of one processor, as the kernel counts it.
    pub cpu_second_micro_cents: u32,
    /// A GiB of memory limit, for a second in which the sandbox has compute.
    pub gib_second_micro_cents: u32,
}

impl Default for Prices {
    /// Of the order of what public clouds ask: 5 cents an hour of a busy processor, 1.6 an hour of a GiB.
    fn default() -> Self {
        Self { cpu_second_micro_cents: 1_400, gib_second_micro_cents: 450 }
    }
}

impl Prices {
    /// In micro-cents, rounded down; `cpu_usec` is microseconds of a processor, `mib_ms` milliseconds of
    /// a MiB. What is negative costs nothing.
    pub fn micro_cents(&self, cpu_usec: i64, mib_ms: i64) -> i64 {
        let cpu = i128::from(cpu_usec.max(0)) * i128::from(self.cpu_second_micro_cents) / 1_000_000;
        let memory = i128::from(mib_ms.max(0)) * i128::from(self.gib_second_micro_cents);
        i64::try_from(cpu + memory / (1024 * 1000)).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_costs_what_the_prices_say() {
        let prices = Prices { cpu_second_micro_cents: 1_000, gib_second_micro_cents: 500 };
        let hour_ms = 3_600_000;
        assert_eq!(prices.micro_cents(hour_ms * 1000, 0), 3_600_000);
        assert_eq!(prices.micro_cents(0, 2 * 1024 * hour_ms), 2 * 1_800_000);
        assert_eq!(prices.micro_cents(hour_ms * 1000, 1024 * hour_ms), 5_400_000);
        assert_eq!(prices.micro_cents(-1, -1), 0);
        assert_eq!(
            prices.micro_cents(i64::MAX, i64::MAX),
            9_223_372_036_854_775 + 4_503_599_627_370_495
        );
    }
}
