//! Suggestions for a mistyped name.

use strsim::osa_distance;

/// The one of `names` that is nearest to `name`, if it is near enough to be meant.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance_max = (name.chars().count() / 4).max(2);
    names
        .map(|candidate| (osa_distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= distance_max)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_and_a_far_one_is_not() {
        let names = || ["num.partitions", "node.id", "max.connections"].into_iter();
        assert_eq!(nearest("num.partitons", names()), Some("num.partitions"));
        assert_eq!(nearest("nodeid", names()), Some("node.id"));
        assert_eq!(nearest("something.else", names()), None);
    }
}
