//! Whatever a body says: what is taken of it can be a file's name, an argument and a variable, and what is
//! refused is not repeated.

use serde_json::{Value, json};

use super::{HISTORY_BYTES_MAX, Past, Wanted, past_of, secrets_of, variables_of};

const HUSH: &str = "hush-hush";

/// Enough of a generator for this: the same seed, the same run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(sides).unwrap()).unwrap()
    }

    fn text(&mut self) -> String {
        let pieces = [
            "a", "Z", "9", "-", "_", ".", "..", "/", "\\", "\0", "=", "\n", " ", "ä", "%2f",
            "$(x)", "ses", HUSH,
        ];
        (0..self.roll(6)).map(|_| pieces[self.roll(pieces.len())]).collect()
    }

    fn value(&mut self) -> Value {
        match self.roll(6) {
            0 => Value::Null,
            1 => json!(self.roll(9)),
            2 => json!([self.text()]),
            3 => json!({self.text(): self.text()}),
            _ => json!(self.text()),
        }
    }
}

#[test]
fn an_id_that_is_taken_is_a_plain_file_name_and_no_argument() {
    let mut dice = Dice(7);
    let mut taken = 0;
    for _ in 0..20_000 {
        let id = dice.text();
        let Ok(Past { native_session_id: Some(taken_id), .. }) = past_of(Some(id.clone()), None)
        else {
            continue;
        };
        taken += 1;
        assert_eq!(taken_id, id);
        let path = std::path::Path::new(&taken_id);
        assert!(path.file_name().is_some_and(|name| name == path), "{taken_id:?}");
        assert!(!taken_id.starts_with(['-', '.']), "{taken_id:?}");
    }
    assert!(taken > 100, "{taken}");
}

#[test]
fn no_body_gets_a_bad_variable_through_or_its_secrets_said() {
    let names = [
        "vendor",
        "base_url",
        "api_key",
        "model",
        "wire_version",
        "secrets",
        "env",
        "history",
        "native_session_id",
        "app_json",
    ];
    let mut dice = Dice(11);
    let mut taken = 0;
    for _ in 0..20_000 {
        let mut body = json!({"agent": "mock"});
        for _ in 0..dice.roll(5) {
            body[names[dice.roll(names.len())]] = dice.value();
        }
        if dice.roll(2) == 0 {
            body["vendor"] = json!("anthropic");
        }
        let Ok(wanted) = serde_json::from_value::<Wanted>(body.clone()) else { continue };
        let (variables, secrets) = (variables_of(&wanted), secrets_of(&wanted));
        let hush = |value: &String| value.contains(HUSH);
        // Names are said, and another field may say the same.
        let only_a_value = body.to_string().matches(HUSH).count() == 1;
        if let Err(error) = &secrets
            && only_a_value
            && wanted.secrets.values().any(hush)
        {
            assert!(!error.to_string().contains(HUSH), "{body}: {error}");
        }
        let (Ok(variables), Ok(secrets)) = (variables, secrets) else { continue };
        taken += 1;
        for (name, value) in variables.iter().chain(secrets.iter()) {
            assert!(!name.is_empty() && !name.contains(['=', '\0']), "{body}");
            assert!(!value.contains('\0'), "{body}");
        }
        assert!(!format!("{secrets:?}").contains("=>"), "values are not shown");
    }
    assert!(taken > 100, "{taken}");
}

#[test]
fn what_was_said_has_an_end() {
    let past = |bytes| past_of(None, Some("x".repeat(bytes)));
    assert!(past(HISTORY_BYTES_MAX).unwrap().history.is_some());
    assert!(past(HISTORY_BYTES_MAX + 1).is_err());
    assert_eq!(past_of(Some(String::new()), Some(" \n".to_owned())), Ok(Past::default()));
}
