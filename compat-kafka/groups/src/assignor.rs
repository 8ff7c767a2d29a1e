//! The assignors that members of consumer groups choose from.

/// An assignor of the server, by its name in Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignor {
    /// Partitions are spread evenly, and stay where they are if they can.
    Uniform,
    /// Each member gets a range of each topic, so that partitions of the same number meet.
    Range,
}

impl Assignor {
    /// All of them, the default first.
    pub const ALL: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

    /// Its name in Kafka.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// The assignor of that name.
    pub fn named(name: &str) -> Option<Assignor> {
        Assignor::ALL.into_iter().find(|assignor| assignor.name() == name)
    }
}
