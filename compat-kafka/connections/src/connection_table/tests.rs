use std::collections::VecDeque;

use super::*;

struct Fixture {
    table: Arc<ConnectionTable>,
    inside: Arc<KafkaListener>,
    limits: OpenLimits,
}

/// A connection, and whether it was told to end.
struct TestPlace {
    place: ConnectionPlace,
    handle: AbortHandle,
}

impl Fixture {
    fn new(connections_max: usize) -> Fixture {
        let table = ConnectionTable::new(&BudgetRegistry::default(), connections_max);
        let limits =
            OpenLimits { all: connections_max, of_address: usize::MAX, of_listener: usize::MAX };
        Fixture { table, inside: Arc::new(KafkaListener::plain()), limits }
    }

    fn route(&self, last: u8) -> ConnectionRoute {
        ConnectionRoute { from: [10, 0, 0, last].into(), to: Arc::clone(&self.inside) }
    }

    fn open(&self, route: &ConnectionRoute) -> Result<TestPlace, FullLimit> {
        self.open_from(route, PlaceSource::Free)
    }

    fn open_from(
        &self,
        route: &ConnectionRoute,
        source: PlaceSource,
    ) -> Result<TestPlace, FullLimit> {
        let (handle, _) = AbortHandle::new_pair();
        let place = self.table.open(route, handle.clone(), self.limits, source)?;
        Ok(TestPlace { place, handle })
    }

    /// Opens one from `last`, which then belongs to `user` and is idle.
    fn serve(&self, last: u8, user: &str) -> TestPlace {
        let mut open = self.open(&self.route(last)).expect("there is room");
        open.place.establish(Holder::principal(user, false));
        open
    }

    /// Opens one from `last`, which then serves a request.
    fn serve_request(&self, last: u8) -> TestPlace {
        let mut open = self.open(&self.route(last)).expect("there is room");
        open.place.establish(Holder::address([10, 0, 0, last].into()));
        open.place.begin_request();
        open
    }

    /// Opens one from `last`, for which others may end.
    fn make_room(&self, last: u8) -> bool {
        let full = self.open(&self.route(last)).err().expect("all are taken");
        self.table.end_one(&self.route(last), &full)
    }
}

#[test]
fn each_limit_holds_and_what_ends_makes_room() {
    let mut fixture = Fixture::new(4);
    fixture.limits = OpenLimits { all: 4, of_address: 2, of_listener: 3 };
    let outside = KafkaListener { key: "outside".to_owned(), ..KafkaListener::plain() };
    let outside = Arc::new(outside);
    let route_out =
        |last| ConnectionRoute { from: [10, 0, 0, last].into(), to: Arc::clone(&outside) };
    let first = fixture.open(&fixture.route(1)).ok();
    let second = fixture.open(&fixture.route(1)).ok();
    assert!(first.is_some() && second.is_some());
    assert_eq!(fixture.open(&route_out(1)).err(), Some(FullLimit::Address));
    let third = fixture.open(&fixture.route(2)).ok();
    let listener = FullLimit::Listener("PLAINTEXT".to_owned());
    assert_eq!(fixture.open(&fixture.route(2)).err(), Some(listener));
    let fourth = fixture.open(&route_out(2)).ok();
    assert!(matches!(fixture.open(&route_out(3)).err(), Some(FullLimit::All(_))));
    drop(first);
    let fifth = fixture.open(&fixture.route(3)).ok();
    assert!(fifth.is_some());
    drop([second, third, fourth, fifth]);
    let open = fixture.table.open.lock();
    assert!(fixture.table.budget.used() == 0 && open.by_address.is_empty());
    assert!(open.early.is_empty() && open.served.is_empty());
    assert!(open.by_listener.values().all(|count| *count == 0));
}

#[test]
fn the_oldest_silent_one_of_the_address_with_most_ends() {
    let fixture = Fixture::new(16);
    let lone_connection = fixture.open(&fixture.route(1)).expect("there is room");
    let served = fixture.serve(2, "User:b");
    let connections: Vec<_> =
        (0..14).map(|_| fixture.open(&fixture.route(2)).ok().unwrap()).collect();
    assert!(fixture.make_room(3));
    assert!(connections[0].handle.is_aborted() && !connections[1].handle.is_aborted());
    assert!(!lone_connection.handle.is_aborted() && !served.handle.is_aborted());
}

/// A client that opens connections without end, and sends a request over each, has no early ones.
#[test]
fn a_client_that_has_just_come_stays_beside_one_that_takes_all() {
    let fixture = Fixture::new(64);
    let mut busy: Vec<_> = (0..62).map(|_| fixture.serve_request(2)).collect();
    let newcomers = [1, 3].map(|last| fixture.open(&fixture.route(last)).expect("there is room"));
    assert!(!fixture.make_room(2), "its own are busy, and it has the most");
    assert!(fixture.make_room(4) && busy[0].handle.is_aborted());
    busy[5].place.mark_idle();
    assert!(fixture.make_room(2) && busy[5].handle.is_aborted());
    assert!(newcomers.iter().all(|open| !open.handle.is_aborted()));
    // With one more that has not asked yet, they are more than a thirty-second.
    busy.retain(|open| !open.handle.is_aborted());
    let third = fixture.open(&fixture.route(5)).expect("two went");
    let _last = fixture.open(&fixture.route(6)).expect("two went");
    assert!(fixture.make_room(2) && newcomers[0].handle.is_aborted());
    assert!(!newcomers[1].handle.is_aborted() && !third.handle.is_aborted());
}

#[test]
fn silent_clients_displace_few_who_are_served() {
    let fixture = Fixture::new(4096);
    let mut served: Vec<_> = (0..3968).map(|_| fixture.serve(1, "User:app")).collect();
    let mut silent: VecDeque<_> = VecDeque::new();
    for nth in 0..2000_u32 {
        if nth == 1000 {
            assert!(served.len() >= 3968 - 33, "one address: {} are left", served.len());
        }
        // From one address at first, and then from sixteen.
        let last = if nth < 1000 { 2 } else { (nth % 16) as u8 + 2 };
        let open = fixture.open(&fixture.route(last)).or_else(|full| {
            fixture.table.end_one(&fixture.route(last), &full);
            silent.retain(|open: &TestPlace| !open.handle.is_aborted());
            served.retain(|open| !open.handle.is_aborted());
            fixture.open_from(&fixture.route(last), PlaceSource::Vacated)
        });
        silent.extend(open);
    }
    assert!(served.len() >= 3968 - 128, "{} are left", served.len());
}

#[test]
fn silent_ones_of_an_address_make_room_for_its_next() {
    let mut fixture = Fixture::new(16);
    fixture.limits.of_address = 2;
    let newcomer = fixture.open(&fixture.route(1)).expect("there is room");
    let served = fixture.serve(2, "User:b");
    let silent = fixture.open(&fixture.route(2)).expect("there is room");
    assert!(fixture.make_room(2) && silent.handle.is_aborted());
    assert!(!fixture.make_room(2), "those that are served stay");
    assert!(!served.handle.is_aborted() && !newcomer.handle.is_aborted());
}

#[test]
fn the_largest_holder_gives_way_with_its_idlest() {
    let fixture = Fixture::new(32);
    let served: Vec<_> = (0..31).map(|_| fixture.serve(1, "User:b")).collect();
    served[0].place.begin_request();
    let newcomer = fixture.serve(2, "User:admin");
    assert!(served.iter().all(|open| !open.handle.is_aborted()), "the reserve is for newcomers");
    assert!(fixture.make_room(3));
    assert!(served[1].handle.is_aborted() && !served[0].handle.is_aborted());
    assert!(!newcomer.handle.is_aborted());
}

#[test]
fn a_busy_connection_ends_for_others_and_not_for_its_own() {
    let fixture = Fixture::new(16);
    let served: Vec<_> = (0..16).map(|_| fixture.serve_request(1)).collect();
    assert!(!fixture.make_room(1));
    assert!(fixture.make_room(2) && served[0].handle.is_aborted());
}

#[test]
fn a_user_with_its_share_makes_room_for_its_next() {
    let fixture = Fixture::new(64);
    let mut served: VecDeque<_> = (0..62).map(|_| fixture.serve(1, "User:b")).collect();
    for nth in 0..3 {
        let next = fixture.serve(1, "User:b");
        let oldest = served.pop_front().expect("there are many");
        assert!(oldest.handle.is_aborted() && !next.handle.is_aborted(), "{nth}");
        served.push_back(next);
    }
    assert!(served.iter().all(|open| !open.handle.is_aborted()));
}

#[test]
fn a_vacated_place_is_taken_below_the_reserve() {
    let fixture = Fixture::new(64);
    let _many: Vec<_> = (0..62).map(|_| fixture.serve(1, "User:b")).collect();
    let first = fixture.open(&fixture.route(2)).expect("it is a newcomer");
    assert!(fixture.open(&fixture.route(2)).is_err());
    assert!(fixture.open_from(&fixture.route(2), PlaceSource::Vacated).is_ok());
    drop(first);
}

#[test]
fn a_small_limit_is_for_whoever_is_served_first() {
    let fixture = Fixture::new(4);
    let served: Vec<_> = (0..4).map(|_| fixture.serve(1, "User:b")).collect();
    assert!(!fixture.make_room(2));
    assert!(served.iter().all(|open| !open.handle.is_aborted()));
}

#[test]
fn strangers_hold_little_and_leave_room_for_a_login() {
    let fixture = Fixture::new(4096);
    let bytes = 512 << 10;
    let mut flood: Vec<_> = (0..200)
        .map(|_| {
            let open = fixture.open(&fixture.route(1)).expect("there is room");
            let mut memory = open.place.login_memory();
            let is_refused = memory.grow_to(bytes).is_err();
            (open, memory, is_refused)
        })
        .collect();
    assert!(flood.iter().any(|(.., is_refused)| *is_refused));
    assert!(fixture.table.login_memory.used() <= LOGIN_BYTES_MAX);
    for last in [1, 2, 2] {
        let open = fixture.open(&fixture.route(last)).expect("there is room");
        let mut memory = open.place.login_memory();
        assert!(memory.grow_to(64 << 10).is_ok(), "10.0.0.{last}");
        // Connections that were told to end are gone a moment later.
        flood.retain(|(open, ..)| !open.handle.is_aborted());
        assert!(fixture.table.login_memory.used() <= LOGIN_BYTES_MAX);
    }
}
