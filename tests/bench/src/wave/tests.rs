//! A small wave against the real server, without pacing: samples go out one after the other, as
//! fast as they are answered, and their timestamps are the same as always. The claims do not depend
//! on when anything happens.

use std::time::Duration;

use super::movie::{MovieFrame, beyond_delay, is_genuine};
use super::reader::PhotoReader;
use super::stream::{Camera, RunOrigin, run as run_cameras};
use super::wave_run::photos_of_the_past;
use super::*;
use crate::topic::BenchTopic;

const SAMPLES: usize = 14;

#[test]
fn chances_are_the_same_for_the_same_question_and_spread_evenly() {
    assert_eq!(chance(1, &[2, 3]).to_bits(), chance(1, &[2, 3]).to_bits());
    let mean = (0..1_000).map(|nth| chance(9, &[nth, 5])).sum::<f64>() / 1_000.0;
    assert!((mean - 0.5).abs() < 0.05, "{mean}");
}

/// F1.
#[test]
fn a_movie_by_user_time_has_no_wrong_cell_and_one_by_system_time_differs_by_delay_alone() {
    let directory = ::testkit::directory::TestDirectory::new();
    let server = ::testkit::process::TestServer::start(directory.path(), &[]).unwrap();
    let mesh = CameraMesh { side: 3 };
    let film = water_tank::film(mesh.cells_side(), SAMPLES, SAMPLE_MS, 1);
    let pace = SamplePace { interval_ms: SAMPLE_MS, delay_ms: 10, seed: 1, is_real: false };
    let origin = RunOrigin::ahead(Duration::ZERO).unwrap();
    let topic = BenchTopic::named(server.kafka, "mesh", mesh.cameras() as u32).unwrap();
    let prepare =
        |camera| Camera::prepare(server.kafka, &topic.name, mesh, camera, &film, origin, pace);
    let cameras: Vec<Camera> = (0..mesh.cameras()).map(prepare).collect::<Result<_>>().unwrap();
    let journeys = run_cameras(cameras, origin, pace).unwrap();
    let mut reader = PhotoReader::connect(server.kafka).unwrap();

    // Just before, at and just after the moment of each sample: timestamps lie far from system
    // time.
    for sample in 1..SAMPLES {
        let moment = origin.wall_ms + sample as u64 * SAMPLE_MS;
        let moments = [moment - 1, moment, moment + 1];
        let photos =
            photos_of_the_past(&mut reader, 'u', mesh.cameras(), moments.into_iter()).unwrap();
        for (photo, expected) in photos.iter().zip([sample - 1, sample, sample]) {
            let frame = MovieFrame::of(mesh, photo, &film, expected, &journeys);
            assert_eq!((frame.wrong_cells, frame.rmse_mm), (0, 0.0), "sample {sample}");
            assert_eq!(frame.moments(), 1);
        }
    }

    // Every millisecond in which something was sent, and those around.
    let all = || journeys.iter().flatten();
    let first = all().map(|journey| journey.sent_ms).min().unwrap() - 1;
    let last = all().map(|journey| journey.answered_ms).max().unwrap() + 1;
    let step = (last - first).div_ceil(200) as usize;
    let moments = || (first..=last).step_by(step).chain([last]);
    let photos = photos_of_the_past(&mut reader, 's', mesh.cameras(), moments()).unwrap();
    assert_eq!(photos.first(), Some(&vec![None; mesh.cameras()]));
    for (photo, moment) in photos.iter().zip(moments()) {
        assert!(is_genuine(mesh, photo, &film));
        assert_eq!(beyond_delay(photo, moment + 1, &journeys), 0, "moment {moment}");
        assert_eq!(MovieFrame::of(mesh, photo, &film, SAMPLES - 1, &journeys).unclosed, 0);
    }
    let end = MovieFrame::of(mesh, &photos[photos.len() - 1], &film, SAMPLES - 1, &journeys);
    assert_eq!(end.wrong_cells, 0);

    // The checks can fail: a tile of another moment, or one from beyond the cut, is found.
    let mut torn = photos[photos.len() - 1].clone();
    torn[4] = Some(mesh.tile(&film[0], 4, 0));
    assert!(MovieFrame::of(mesh, &torn, &film, SAMPLES - 1, &journeys).wrong_cells > 0);
    assert_eq!(beyond_delay(&torn, last + 1, &journeys), 1);
    assert_eq!(beyond_delay(&torn, first, &journeys), mesh.cameras());

    // Kafka's own means find the same, once everything is there.
    let afterwards = reader.before_time("mesh", origin.wall_ms + 151, mesh.cameras(), || ());
    let afterwards = MovieFrame::of(mesh, &afterwards.unwrap(), &film, 3, &journeys);
    assert_eq!(afterwards.wrong_cells, 0);
}
