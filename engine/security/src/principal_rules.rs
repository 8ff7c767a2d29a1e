//! The names of clients with certificates: rules that make names of the names in certificates
//! (KIP-371).

use regex::Regex;

/// `ssl.principal.mapping.rules`: the first rule that fits names the client.
#[derive(Clone, Debug, Default)]
pub struct PrincipalRules(Vec<PrincipalRule>);

#[derive(Clone, Debug)]
enum PrincipalRule {
    /// The name as it is.
    Default,
    Replace {
        pattern: Regex,
        replacement: String,
        case: Option<LetterCase>,
    },
}

#[derive(Clone, Copy, Debug)]
enum LetterCase {
    Lower,
    Upper,
}

impl PrincipalRules {
    /// Reads `DEFAULT` and `RULE:PATTERN/REPLACEMENT/[LU]`, with commas between.
    ///
    /// # Errors
    /// In words: what to give instead.
    pub fn parse(text: &str) -> Result<PrincipalRules, String> {
        let mut rules = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (rule, after) = parse_rule(rest)?;
            rules.push(rule);
            rest = after.trim_start();
            rest = match rest.strip_prefix(',') {
                Some(rest) => rest.trim_start(),
                None if rest.is_empty() => rest,
                None => return Err(expected(rest)),
            };
        }
        Ok(PrincipalRules(rules))
    }

    /// The name of a client whose certificate has the name `subject`. If no rule fits, it is that
    /// name.
    pub fn apply(&self, subject: &str) -> String {
        self.0.iter().find_map(|rule| rule.apply(subject)).unwrap_or_else(|| subject.to_owned())
    }
}

impl PrincipalRule {
    fn apply(&self, subject: &str) -> Option<String> {
        let PrincipalRule::Replace { pattern, replacement, case } = self else {
            return Some(subject.to_owned());
        };
        let captures = pattern.captures(subject)?;
        let mut name = String::new();
        captures.expand(replacement, &mut name);
        Some(match case {
            None => name,
            Some(LetterCase::Lower) => name.to_lowercase(),
            Some(LetterCase::Upper) => name.to_uppercase(),
        })
    }
}

fn expected(rest: &str) -> String {
    format!(
        "give DEFAULT, or RULE:PATTERN/REPLACEMENT/ with L or U behind it, with commas between; it does not read from here on: {rest}"
    )
}

/// The rule at the front, and what follows it.
fn parse_rule(text: &str) -> Result<(PrincipalRule, &str), String> {
    if let Some(rest) = text.strip_prefix("DEFAULT") {
        return Ok((PrincipalRule::Default, rest));
    }
    let rest = text.strip_prefix("RULE:").ok_or_else(|| expected(text))?;
    let (pattern, rest) = until_slash(rest).ok_or_else(|| expected(text))?;
    let (replacement, rest) = until_slash(rest).ok_or_else(|| expected(text))?;
    let (case, rest) = match rest.chars().next() {
        Some('L') => (Some(LetterCase::Lower), &rest[1..]),
        Some('U') => (Some(LetterCase::Upper), &rest[1..]),
        _ => (None, rest),
    };
    // The pattern has to fit the whole name, as Java's `matches` has it.
    let pattern = Regex::new(&format!("^(?:{pattern})$"))
        .map_err(|error| format!("give a pattern that is a regular expression: {error}"))?;
    let replacement = braced_references(&replacement);
    Ok((PrincipalRule::Replace { pattern, replacement, case }, rest))
}

/// The text in front of the next slash without a backslash before it, and the text behind it. The
/// backslashes of escaped slashes are taken off.
fn until_slash(text: &str) -> Option<(String, &str)> {
    let mut literal = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            '/' => return Some((literal, &text[at + 1..])),
            '\\' if chars.peek().is_some_and(|(_, next)| *next == '/') => {
                chars.next();
                literal.push('/');
            }
            _ => literal.push(char),
        }
    }
    None
}

/// `$1x` is group 1 and an x in Java, and the group `1x` in the crate for regular expressions.
fn braced_references(replacement: &str) -> String {
    let mut braced = String::new();
    let mut chars = replacement.chars().peekable();
    while let Some(char) = chars.next() {
        braced.push(char);
        if char == '$' && chars.peek().is_some_and(char::is_ascii_digit) {
            braced.push('{');
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                braced.push(digit);
            }
            braced.push('}');
        }
    }
    braced
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of KIP-371 and of Kafka's own tests.
    #[test]
    fn rules_name_clients_as_kafka_does() {
        let rules = PrincipalRules::parse(concat!(
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, ",
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, ",
            "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, ",
            "DEFAULT",
        ))
        .unwrap();
        for (subject, name) in [
            ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
            ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
            ("cn=duke,ou=JavaSoft,o=Sun Microsystems", "DUKE"),
            ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ] {
            assert_eq!(rules.apply(subject), name, "{subject}");
        }
        let slash = PrincipalRules::parse(r"RULE:^CN=(\w+)\/x$/a\/$1b/").unwrap();
        assert_eq!(slash.apply("CN=duke/x"), "a/dukeb");
        assert_eq!(slash.apply("CN=duke"), "CN=duke");
        for none in ["", "DEFAULT", "DEFAULT,"] {
            assert_eq!(PrincipalRules::parse(none).unwrap().apply("CN=a"), "CN=a");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for bad in ["RULE:", "RULE:x", "RULE:x/y", "DEFAULTS", "RULE:(/x/", "RULE:a/b/LU", "x"] {
            assert!(PrincipalRules::parse(bad).is_err(), "{bad}");
        }
    }
}
