//! Suggestions for a mistyped topic or group, and for a link that cannot be had.

use anyhow::anyhow;
use broker::nearest;
use client::ClientError;
use strsim::osa_distance;

use crate::commands::ServerAddress;
use crate::output::error_chain;

/// The same error, with what may help.
pub(crate) async fn with_suggestion(server: &ServerAddress, error: anyhow::Error) -> anyhow::Error {
    if let Some(ClientError::NoLink { .. }) = error.downcast_ref() {
        let help = "leave out --link to go over TCP; `freezeframe doctor` shows what is missing";
        return anyhow!("{}; {help}", error_chain(&error));
    }
    match nearest_name(server, &error).await {
        Some(name) => anyhow!("{}; did you mean {name}?", error_chain(&error)),
        None => error,
    }
}

async fn nearest_name(server: &ServerAddress, error: &anyhow::Error) -> Option<String> {
    let error = error.downcast_ref::<ClientError>()?;
    let (ClientError::UnknownTopic(name) | ClientError::UnknownGroup(name)) = error else {
        return None;
    };
    let mut client = server.connect().await.ok()?;
    let names: Vec<String> = match error {
        ClientError::UnknownTopic(_) => {
            client.topics().await.ok()?.into_iter().map(|topic| topic.name).collect()
        }
        _ => client.groups().await.ok()?.into_iter().map(|group| group.group).collect(),
    };
    near_of(name, &names).map(str::to_owned)
}

/// The nearest name, if at most one letter in three differs: all short names are near each other.
fn near_of<'a>(name: &str, names: &'a [String]) -> Option<&'a str> {
    let suggestion = nearest(name, names.iter().map(String::as_str))?;
    (osa_distance(name, suggestion) * 3 <= name.chars().count()).then_some(suggestion)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_distinguished_from_another_name() {
        let names = ["orders".to_owned(), "t".to_owned()];
        assert_eq!(near_of("ordres", &names), Some("orders"));
        assert_eq!(near_of("order", &names), Some("orders"));
        assert_eq!(near_of("payments", &names), None);
        assert_eq!(near_of("u", &names), None);
    }
}
