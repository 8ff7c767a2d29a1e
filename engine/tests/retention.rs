//! The rules by which records of topics are removed (TIME.md 6).

use std::collections::BTreeMap;
use std::time::Duration;

use engine::EngineOptions;
use engine::retention::RetentionRules;
use hlc::SysTime;
use testkit::engine::{EngineFixture, START};

/// The rules by name and by whether the topic was deleted.
fn rules(fixture: &EngineFixture) -> BTreeMap<(String, bool), RetentionRules> {
    let rules = fixture.engine.maintenance().retention_rules().into_iter();
    rules.map(|(topic, rules)| ((topic.name.to_string(), rules.deleted.is_some()), rules)).collect()
}

#[tokio::test]
async fn a_topic_goes_by_its_last_settings_also_once_it_is_deleted() {
    let fixture = EngineFixture::new();
    let for_ever = BTreeMap::from([("retention.ms".to_owned(), "-1".to_owned())]);
    fixture.engine.topics().create("kept", 1, for_ever.clone(), [1; 16], false).await.unwrap();
    let first = fixture.engine.topics().create("t", 1, for_ever, [2; 16], false).await.unwrap();
    assert_eq!(rules(&fixture), BTreeMap::new(), "nothing of these ever goes");
    let shorter = |configs: &mut BTreeMap<String, String>| {
        configs.insert("retention.ms".to_owned(), "5000".to_owned());
        Ok(())
    };
    fixture.engine.topics().configure("t", shorter, false).await.unwrap();
    fixture.advance_clock(1000);
    fixture.engine.topics().delete(first.id).await.unwrap();
    let configs = BTreeMap::from([("retention.bytes".to_owned(), "7".to_owned())]);
    fixture.engine.topics().create("t", 1, configs, [3; 16], false).await.unwrap();
    let week = EngineOptions::default().core.deleted_topic_retention;
    let deleted = Some((SysTime(START + 1000), week));
    let ended = RetentionRules { age: Some(Duration::from_secs(5)), bytes: None, deleted };
    let present = RetentionRules { age: Some(week), bytes: Some(7), deleted: None };
    let expected = [(("t".to_owned(), true), ended), (("t".to_owned(), false), present)];
    assert_eq!(rules(&fixture), expected.clone().into());
    // Also after a restart.
    assert_eq!(rules(&fixture.restart()), expected.into());
}
