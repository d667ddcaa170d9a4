use super::*;

#[test]
fn an_age_has_one_unit() {
    for (seconds, text) in [(-3, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")] {
        assert_eq!(age(seconds), text);
    }
}
