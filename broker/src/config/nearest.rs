//! Suggestions for a mistyped name.

/// The one of `names` that is nearest to `name`, if it is near enough to be meant.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let enough = (name.chars().count() / 4).max(2);
    names
        .map(|known| (distance(name, known), known))
        .filter(|(distance, _)| *distance <= enough)
        .min()
        .map(|(_, known)| known)
}

/// The edit distance of two names: how many letters must be inserted, removed, replaced or swapped
/// with a neighbour.
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut above: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            next[j] = replaced.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                next[j] = next[j].min(above[j - 2] + 1);
            }
        }
        above = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_added_removed_replaced_and_swapped_count_one_each() {
        for (a, b, apart) in
            [("", "", 0), ("", "abc", 3), ("abc", "ac", 1), ("abc", "axc", 1), ("abc", "acb", 1)]
        {
            assert_eq!(distance(a, b), apart, "{a} {b}");
            assert_eq!(distance(b, a), apart, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_name_is_offered_and_a_far_one_is_not() {
        let names = || ["num.partitions", "node.id", "max.connections"].into_iter();
        assert_eq!(nearest("num.partitons", names()), Some("num.partitions"));
        assert_eq!(nearest("nodeid", names()), Some("node.id"));
        assert_eq!(nearest("something.else", names()), None);
    }
}
