//! The assignor of streams groups, "sticky" in Kafka: tasks stay where they are or where their
//! state is, as long as no member has more than its share; the others go to the processes with the
//! least load.
//!
//! Members are threads, and those of one process share its disk: a process has no task twice.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::tasks::{MemberTasks, TaskRole, TaskSet};

/// A member, as the assignor sees it.
pub(super) struct AssignableMember<'a> {
    pub(super) process: &'a str,
    /// Its last target.
    pub(super) before: &'a MemberTasks,
}

/// A subtopology, as the assignor sees it.
pub(super) struct AssignableSubtopology<'a> {
    pub(super) id: &'a str,
    pub(super) tasks: u32,
    pub(super) is_stateful: bool,
}

/// Gives each task to one member, and `standbys` copies of those that have state to members of
/// other processes, as far as there are any. Returns what each member is to have, in the same
/// order.
pub(super) fn assign(
    members: &[AssignableMember<'_>],
    subtopologies: &[AssignableSubtopology<'_>],
    standbys: u32,
) -> Vec<MemberTasks> {
    if members.is_empty() {
        return Vec::new();
    }
    let mut assigner = TaskAssigner::new(members, subtopologies);
    let tasks_of = |(index, subtopology): (usize, &AssignableSubtopology<'_>)| {
        (0..subtopology.tasks).map(move |partition| Task { partition, subtopology: index })
    };
    let active: Vec<Task> = subtopologies.iter().enumerate().flat_map(tasks_of).collect();
    let stateful =
        subtopologies.iter().enumerate().filter(|(_, subtopology)| subtopology.is_stateful);
    let stateful: Vec<Task> = stateful.flat_map(tasks_of).collect();
    let copies = stateful.len() * standbys as usize;
    assigner.assign_active(active.clone());
    if standbys > 0 {
        assigner.quota_all.restart(active.len() + copies, &assigner.members);
        assigner.assign_standbys(stateful, standbys);
    }
    assigner.into_targets(subtopologies)
}

/// A task, by partition first: that is the order in which they are given back to who had them, so
/// that the tasks of one subtopology are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Task {
    partition: u32,
    subtopology: usize,
}

#[derive(Default)]
struct MemberLoad {
    process: usize,
    count: usize,
    active: Vec<Task>,
    standby: Vec<Task>,
}

#[derive(Default)]
struct ProcessLoad {
    /// Its members by the number of their tasks.
    members: BTreeSet<(usize, usize)>,
    tasks: HashSet<Task>,
}

impl ProcessLoad {
    /// Tasks by member, to compare processes by.
    fn load(&self) -> u64 {
        ((self.tasks.len() as u64) << 32) / self.members.len().max(1) as u64
    }
}

/// The number of tasks that a member may keep: an even share of what is left for those that have
/// less.
#[derive(Default)]
struct TaskQuota {
    tasks: usize,
    members: usize,
    each: usize,
}

impl TaskQuota {
    fn new(tasks: usize, members: usize) -> TaskQuota {
        TaskQuota { tasks, members, each: tasks.div_ceil(members.max(1)) }
    }

    /// Begins again, with members that have tasks already.
    fn restart(&mut self, tasks: usize, members: &[MemberLoad]) {
        *self = TaskQuota::new(tasks, members.len());
        let mut counts: Vec<usize> = members.iter().map(|member| member.count).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        for count in counts {
            if count < self.each {
                break;
            }
            self.take_out(count);
        }
    }

    /// Notes that a member has `count` tasks now.
    fn note(&mut self, count: usize) {
        if count == self.each {
            self.take_out(count);
        }
    }

    fn take_out(&mut self, count: usize) {
        self.members = self.members.saturating_sub(1);
        self.tasks = self.tasks.saturating_sub(count);
        self.each = match self.members {
            0 => 0,
            members => self.tasks.div_ceil(members),
        };
    }
}

struct TaskAssigner {
    members: Vec<MemberLoad>,
    processes: Vec<ProcessLoad>,
    by_load: BTreeSet<(u64, usize)>,
    active_before: HashMap<Task, usize>,
    standby_before: HashMap<Task, Vec<usize>>,
    quota_active: TaskQuota,
    /// With the copies.
    quota_all: TaskQuota,
}

impl TaskAssigner {
    fn new(
        members: &[AssignableMember<'_>],
        subtopologies: &[AssignableSubtopology<'_>],
    ) -> TaskAssigner {
        let mut numbers = BTreeMap::new();
        for member in members {
            let next = numbers.len();
            numbers.entry(member.process).or_insert(next);
        }
        let mut processes = Vec::new();
        processes.resize_with(numbers.len(), ProcessLoad::default);
        let mut loads = Vec::with_capacity(members.len());
        for (index, member) in members.iter().enumerate() {
            let process = numbers[member.process];
            processes[process].members.insert((0, index));
            loads.push(MemberLoad { process, ..MemberLoad::default() });
        }
        let by_id: HashMap<&str, usize> = subtopologies
            .iter()
            .enumerate()
            .map(|(index, subtopology)| (subtopology.id, index))
            .collect();
        let tasks = |task_set: &TaskSet| -> Vec<Task> {
            let assigned =
                task_set.iter().filter_map(|(id, tasks)| Some((*by_id.get(id.as_str())?, tasks)));
            let task = |(subtopology, tasks): (usize, &BTreeSet<u32>)| {
                let tasks = tasks.iter();
                tasks
                    .map(|partition| Task { partition: *partition, subtopology })
                    .collect::<Vec<_>>()
            };
            assigned.flat_map(task).collect()
        };
        let (mut active_before, mut standby_before) = (HashMap::new(), HashMap::new());
        for (index, member) in members.iter().enumerate() {
            for task in tasks(&member.before.active) {
                active_before.insert(task, index);
            }
            for task in tasks(&member.before.standby) {
                standby_before.entry(task).or_insert_with(Vec::new).push(index);
            }
        }
        let total = subtopologies.iter().map(|subtopology| subtopology.tasks as usize).sum();
        TaskAssigner {
            by_load: (0..processes.len()).map(|process| (0, process)).collect(),
            quota_active: TaskQuota::new(total, members.len()),
            quota_all: TaskQuota::default(),
            members: loads,
            processes,
            active_before,
            standby_before,
        }
    }

    fn assign_active(&mut self, mut tasks: Vec<Task>) {
        tasks.sort_unstable();
        let is_left = |assigner: &mut TaskAssigner, task: &Task| {
            let owner = assigner.active_before.get(task).copied();
            let owner =
                owner.filter(|member| assigner.members[*member].count < assigner.quota_active.each);
            owner.inspect(|member| assigner.give(*member, *task, TaskRole::Active)).is_none()
        };
        tasks.retain(|task| is_left(self, task));
        tasks.retain(|task| {
            let owner = self.least_loaded_copy(task);
            let owner = owner.filter(|member| self.members[*member].count < self.quota_active.each);
            owner.inspect(|member| self.give(*member, *task, TaskRole::Active)).is_none()
        });
        tasks.sort_unstable_by_key(|task| (task.subtopology, task.partition));
        for task in tasks {
            self.give_to_least_loaded(task, TaskRole::Active);
        }
    }

    fn assign_standbys(&mut self, mut tasks: Vec<Task>, copies: u32) {
        tasks.sort_unstable_by(|a, b| b.cmp(a));
        let mut unassigned = Vec::new();
        for task in tasks {
            let returned = (0..copies).take_while(|_| self.give_standby_back(task)).count() as u32;
            unassigned.push((task, copies - returned));
        }
        unassigned.sort_unstable_by_key(|(task, _)| {
            std::cmp::Reverse((task.subtopology, task.partition))
        });
        for (task, copies) in unassigned {
            // No process without a copy is left, if one finds no place.
            let _ = (0..copies).all(|_| self.give_to_least_loaded(task, TaskRole::Standby));
        }
    }

    /// Gives a copy to a member that had the task, if one may have it.
    fn give_standby_back(&mut self, task: Task) -> bool {
        let may_have = |assigner: &TaskAssigner, member: &usize| {
            let load = &assigner.members[*member];
            load.count < assigner.quota_all.each
                && !assigner.processes[load.process].tasks.contains(&task)
        };
        let active = self.active_before.get(&task).copied();
        let active = active.filter(|member| may_have(self, member));
        let owner = active
            .or_else(|| self.least_loaded_copy(&task).filter(|member| may_have(self, member)));
        owner.inspect(|member| self.give(*member, task, TaskRole::Standby)).is_some()
    }

    /// The least loaded member that had a copy, and whose process does not have the task.
    fn least_loaded_copy(&self, task: &Task) -> Option<usize> {
        let owners = self.standby_before.get(task).into_iter().flatten().copied();
        let is_free =
            |member: &usize| !self.processes[self.members[*member].process].tasks.contains(task);
        let load = |member: &usize| {
            let load = &self.members[*member];
            (self.processes[load.process].load(), load.count)
        };
        owners.filter(is_free).min_by_key(load)
    }

    /// Gives a task to the process with the least load that does not have it; false if all do.
    fn give_to_least_loaded(&mut self, task: Task, role: TaskRole) -> bool {
        let mut by_load = self.by_load.iter().map(|(_, process)| &self.processes[*process]);
        let process = by_load.find(|process| !process.tasks.contains(&task));
        let Some((_, member)) = process.and_then(|process| process.members.first().copied()) else {
            return false;
        };
        self.give(member, task, role);
        true
    }

    fn give(&mut self, member: usize, task: Task, role: TaskRole) {
        let load = &mut self.members[member];
        let process = &mut self.processes[load.process];
        self.by_load.remove(&(process.load(), load.process));
        process.members.remove(&(load.count, member));
        load.count += 1;
        process.members.insert((load.count, member));
        process.tasks.insert(task);
        self.by_load.insert((process.load(), load.process));
        match role {
            TaskRole::Active => {
                load.active.push(task);
                self.quota_active.note(load.count);
            }
            TaskRole::Standby => {
                load.standby.push(task);
                self.quota_all.note(load.count);
            }
        }
    }

    fn into_targets(self, subtopologies: &[AssignableSubtopology<'_>]) -> Vec<MemberTasks> {
        let set = |tasks: Vec<Task>| {
            let mut task_set = TaskSet::new();
            for Task { partition, subtopology } in tasks {
                let id = subtopologies[subtopology].id.to_owned();
                task_set.entry(id).or_default().insert(partition);
            }
            task_set
        };
        let target =
            |load: MemberLoad| MemberTasks { active: set(load.active), standby: set(load.standby) };
        self.members.into_iter().map(target).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subtopologies() -> [AssignableSubtopology<'static>; 2] {
        [
            AssignableSubtopology { id: "0", tasks: 4, is_stateful: false },
            AssignableSubtopology { id: "1", tasks: 6, is_stateful: true },
        ]
    }

    fn run(processes: &[&str], before: &[MemberTasks], standbys: u32) -> Vec<MemberTasks> {
        let no_tasks = MemberTasks::default();
        let members = processes.iter().enumerate().map(|(index, process)| AssignableMember {
            process,
            before: before.get(index).unwrap_or(&no_tasks),
        });
        assign(&members.collect::<Vec<_>>(), &subtopologies(), standbys)
    }

    fn count(tasks: &TaskSet) -> usize {
        tasks.values().map(BTreeSet::len).sum()
    }

    #[test]
    fn tasks_are_spread_over_processes_and_their_threads() {
        let targets = run(&["a", "a", "b"], &[], 0);
        let counts: Vec<usize> = targets.iter().map(|target| count(&target.active)).collect();
        assert_eq!(counts, [4, 3, 3]);
        let targets = run(&["a", "b"], &[], 1);
        assert_eq!(targets.iter().map(|member| count(&member.standby)).sum::<usize>(), 6);
        assert_eq!(run(&["a", "a"], &[], 1)[0].standby, TaskSet::new(), "one process");
        assert_eq!(run(&[], &[], 1), []);
    }

    #[test]
    fn tasks_stay_and_a_copy_takes_over() {
        let before = run(&["a", "b", "c"], &[], 1);
        assert_eq!(run(&["a", "b", "c"], &before, 1), before, "nothing moves");
        // c is gone: members with a copy of its tasks become active.
        let after = run(&["a", "b"], &before[..2], 1);
        let mut moved = 0;
        for (id, tasks) in &before[2].active {
            for task in tasks {
                let has_task =
                    |set: &TaskSet| set.get(id).is_some_and(|partitions| partitions.contains(task));
                let had_copy = (0..2).find(|member| has_task(&before[*member].standby));
                moved +=
                    usize::from(had_copy.is_some_and(|member| has_task(&after[member].active)));
            }
        }
        assert!(moved > 0, "{before:?} {after:?}");
    }

    proptest! {
        /// Each task is active once, no process has a task twice, there are as many copies as there
        /// may be, and threads of one process share evenly, whatever there was before.
        #[test]
        fn each_task_has_one_member(
            members in prop::collection::vec((0..3u8, prop::collection::vec(any::<(bool, u8)>(), 0..12)), 1..8),
            standbys in 0..3u32,
        ) {
            let names = ["a", "b", "c"];
            let processes: Vec<&str> = members.iter().map(|(at, _)| names[*at as usize]).collect();
            let before: Vec<MemberTasks> = members.iter().map(|(_, had)| {
                let mut tasks = MemberTasks::default();
                for (is_active, task) in had {
                    let set = if *is_active { &mut tasks.active } else { &mut tasks.standby };
                    set.entry((task % 3).to_string()).or_default().insert(u32::from(task / 3 % 8));
                }
                tasks
            }).collect();
            let targets = run(&processes, &before, standbys);
            for AssignableSubtopology { id, tasks, is_stateful } in subtopologies() {
                for task in 0..tasks {
                    let has = |tasks: &TaskSet| tasks.get(id).is_some_and(|indexes| indexes.contains(&task));
                    let active = targets.iter().filter(|member| has(&member.active)).count();
                    prop_assert_eq!(active, 1);
                    let mut by_process = BTreeMap::new();
                    for (process, target) in processes.iter().zip(&targets) {
                        *by_process.entry(*process).or_insert(0) +=
                            usize::from(has(&target.active)) + usize::from(has(&target.standby));
                    }
                    prop_assert!(by_process.values().all(|count| *count <= 1));
                    let copies = by_process.values().sum::<usize>() - 1;
                    let most = (standbys as usize).min(by_process.len() - 1);
                    prop_assert_eq!(copies, if is_stateful { most } else { 0 });
                }
            }
            let total: usize = targets.iter().map(|member| count(&member.active)).sum();
            prop_assert_eq!(total, 10);
            if processes.iter().all(|process| *process == processes[0]) {
                let most = targets.iter().map(|member| count(&member.active)).max().unwrap_or(0);
                prop_assert_eq!(most, 10usize.div_ceil(processes.len()));
            }
            prop_assert_eq!(run(&processes, &targets, standbys).len(), targets.len());
        }
    }
}
