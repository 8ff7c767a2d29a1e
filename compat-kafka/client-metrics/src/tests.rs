//! Tests of subscriptions and pushes, as a client sends them.

use std::time::Duration;

use super::*;

fn client() -> ClientIdentity {
    ClientIdentity { client_id: "app".to_owned(), ..ClientIdentity::default() }
}

fn user(name: &str) -> Holder {
    Holder::principal(name, false)
}

fn subscribed(interval_ms: &str) -> Arc<ClientMetrics> {
    let metrics = ClientMetrics::new(1 << 20, &BudgetRegistry::default());
    let config = [("metrics", "org."), ("interval.ms", interval_ms)];
    let config = config.map(|(name, value)| (name.to_owned(), value.to_owned()));
    metrics.subscribe("s", &config.into()).unwrap();
    metrics
}

fn push(requested: &RequestedMetrics, data: Vec<u8>) -> PushedMetrics {
    PushedMetrics {
        instance: requested.instance,
        subscription: requested.subscription,
        is_last: false,
        codec: 0,
        data: data.into(),
    }
}

fn value(metrics: &ClientMetrics, name: &str) -> Option<f64> {
    let values = metrics.metrics();
    values.get(name).map(|metric| metric.series[0].value)
}

#[tokio::test(start_paused = true)]
async fn what_a_client_pushes_is_there_until_it_is_gone() {
    let metrics = subscribed("1000");
    let requested =
        metrics.requested(None, Uuid::from_u128(77), &client(), &user("User:a")).unwrap();
    assert_eq!(
        (requested.instance, &requested.metrics[..]),
        (Uuid::from_u128(77), &["org.".into()][..])
    );
    metrics
        .push(&push(&requested, otlp::encode("org.a.rate", 1.5, 0)), &client(), &user("User:a"))
        .unwrap();
    let values = metrics.metrics();
    let labels: Vec<(&str, &str)> = values["org_a_rate"].series[0]
        .labels
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    let id = subscription::kafka_id(requested.instance);
    let expected = [
        ("client_id", "app"),
        ("client_instance_id", &id),
        ("client_software_name", ""),
        ("client_software_version", ""),
        ("group_id", "g"),
        ("topic", "t"),
    ];
    assert_eq!(labels, expected);
    let first = metrics.own(requested.instance, None).unwrap();
    assert!(metrics.own(requested.instance, Some(&first)).is_none());
    let second = metrics.own(requested.instance, None).unwrap();
    drop(first);
    assert_eq!(metrics.counts().0, 1, "it goes on by another connection");
    drop(second);
    assert_eq!((metrics.metrics().len(), metrics.counts().0), (0, 0));
    let requested =
        metrics.requested(None, Uuid::from_u128(78), &client(), &user("User:a")).unwrap();
    metrics
        .push(&push(&requested, otlp::encode("org.a.rate", 1.5, 0)), &client(), &user("User:a"))
        .unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(value(&metrics, "org_a_rate"), None, "it was silent for too long");
}

#[tokio::test(start_paused = true)]
async fn increases_are_summed_and_totals_are_not() {
    let metrics = subscribed("1000");
    let requested =
        metrics.requested(None, Uuid::from_u128(77), &client(), &user("User:a")).unwrap();
    for (temporality, expected) in [(1, [2.0, 4.0]), (2, [2.0, 2.0])] {
        for expected in expected {
            let data = otlp::encode(&format!("org.{temporality}"), 2.0, temporality);
            metrics.push(&push(&requested, data), &client(), &user("User:a")).unwrap();
            assert_eq!(value(&metrics, &format!("org_{temporality}")), Some(expected));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
    assert_eq!(value(&metrics, "org_1"), Some(4.0), "what has not risen may be left out");
    assert!(metrics.metrics()["org_1"].is_counter);
}

#[tokio::test(start_paused = true)]
async fn wrong_and_early_requests_get_kafkas_errors() {
    let metrics = subscribed("1000");
    let requested =
        metrics.requested(None, Uuid::from_u128(77), &client(), &user("User:a")).unwrap();
    let request_again = || {
        metrics
            .requested(Some(requested.instance), Uuid::nil(), &client(), &user("User:a"))
            .map(drop)
    };
    assert_eq!(request_again(), Err(ResponseError::ThrottlingQuotaExceeded));
    let valid_push = || push(&requested, otlp::encode("org.a", 1.0, 0));
    assert_eq!(metrics.push(&valid_push(), &client(), &user("User:a")), Ok(()));
    assert_eq!(
        metrics.push(&valid_push(), &client(), &user("User:a")),
        Err(ResponseError::ThrottlingQuotaExceeded)
    );
    let refused = async |push: PushedMetrics| {
        tokio::time::advance(Duration::from_secs(1)).await;
        metrics.push(&push, &client(), &user("User:a")).unwrap_err()
    };
    let wrong = PushedMetrics { subscription: requested.subscription + 1, ..valid_push() };
    assert_eq!(refused(wrong).await, ResponseError::UnknownSubscriptionId);
    assert_eq!(request_again(), Ok(()), "the error says that it is to ask again");
    let wrong = PushedMetrics { codec: 9, ..valid_push() };
    assert_eq!(refused(wrong).await, ResponseError::UnsupportedCompressionType);
    let wrong = PushedMetrics { data: vec![0; (1 << 20) + 1].into(), ..valid_push() };
    assert_eq!(refused(wrong).await, ResponseError::TelemetryTooLarge);
    let wrong = PushedMetrics { data: vec![0xff; 9].into(), ..valid_push() };
    assert_eq!(refused(wrong).await, ResponseError::InvalidRecord);
    let wrong = PushedMetrics { codec: 1, ..valid_push() };
    assert_eq!(refused(wrong).await, ResponseError::InvalidRecord, "it is not what it says");
    let wrong = PushedMetrics { instance: Uuid::nil(), ..valid_push() };
    assert_eq!(refused(wrong).await, ResponseError::InvalidRequest);
    assert_eq!(value(&metrics, "org_a"), Some(1.0));
    tokio::time::advance(Duration::from_secs(1)).await;
    let last = PushedMetrics { is_last: true, ..valid_push() };
    assert_eq!(metrics.push(&last, &client(), &user("User:a")), Ok(()));
    assert_eq!(
        refused(valid_push()).await,
        ResponseError::InvalidRequest,
        "it said that it would end"
    );
    metrics.subscribe("s", &BTreeMap::new()).unwrap();
    let requested = metrics
        .requested(Some(requested.instance), Uuid::nil(), &client(), &user("User:a"))
        .unwrap();
    assert!(requested.metrics.is_empty(), "nothing is asked for any more");
}

#[tokio::test(start_paused = true)]
async fn what_clients_push_takes_bounded_memory() {
    let metrics = subscribed("1000");
    let room = BYTES_MAX as usize;
    let requested =
        metrics.requested(None, Uuid::from_u128(77), &client(), &user("User:a")).unwrap();
    let samples = |count: usize, bytes: usize| -> Vec<otlp::Sample> {
        let name = |nth: usize| format!("{nth}{}", "x".repeat(bytes));
        (0..count)
            .map(|nth| otlp::Sample {
                name: name(nth),
                attributes: Vec::new(),
                value: 1.0,
                kind: otlp::SampleKind::Gauge,
            })
            .collect()
    };
    let mut state = metrics.state.lock();
    let instance = state.instances.get_mut(&requested.instance).unwrap();
    instance.take(samples(5000, 10), room);
    assert!(instance.bytes() < 2001 * 300, "{}", instance.bytes());
    instance.take(samples(10, 5000), room);
    assert_eq!(instance.bytes(), 256 + 3, "their names are too long");
    instance.take(samples(100, 1000), 10_000);
    assert!(instance.bytes() <= 10_000);
}

#[tokio::test(start_paused = true)]
async fn a_user_with_many_clients_forgets_its_own_and_leaves_room_for_another() {
    let metrics = subscribed("1000");
    let ask = |id: u128, name: &str| {
        metrics.requested(None, Uuid::from_u128(id), &client(), &user(name)).map(drop)
    };
    assert_eq!(ask(2, "User:a"), Ok(()));
    for nth in 0..u128::from(INSTANCES_MAX) + 10 {
        assert_eq!(ask(1000 + nth, "User:b"), Ok(()));
    }
    let holds = |name: &str| {
        let state = metrics.state.lock();
        state.instances.count_of(&Holder::principal(name, false)) as u64
    };
    assert_eq!(holds("User:a"), 1);
    assert_eq!(holds("User:b"), INSTANCES_MAX - INSTANCES_MAX / 32 - 1);
    for nth in 0..1000 {
        assert_eq!(ask(100_000 + nth, "User:a"), Ok(()));
    }
    assert_eq!(holds("User:a"), 1001);
}
