//! Copying, unpacking and building a project (`G17`–`G20`): one that is generated, of as many files
//! as a small server written in C has, and some that are only text.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{FileMeasurement, timed};

const SOURCES: usize = 100;
const TEXTS: usize = 900;

/// A packed project.
pub(super) struct SampleProject {
    directory: PathBuf,
}

impl SampleProject {
    pub(super) fn create(beside: &Path) -> Result<SampleProject> {
        let directory = beside.join(format!("freezeframe-bench-project-{}", std::process::id()));
        let sources = directory.join("project");
        for folder in ["src", "include", "text"] {
            fs::create_dir_all(sources.join(folder)).context("make the project")?;
        }
        let mut all =
            String::from("#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n");
        let (mut objects, mut sum) = (String::new(), String::new());
        for nth in 0..SOURCES {
            writeln!(all, "int f{nth}(int x);")?;
            write!(objects, " src/f{nth}.o")?;
            write!(sum, " + f{nth}(x)")?;
            fs::write(sources.join(format!("src/f{nth}.c")), source(nth))?;
        }
        for nth in 0..TEXTS {
            let folder = sources.join(format!("text/{}", nth / 30));
            fs::create_dir_all(&folder)?;
            fs::write(
                folder.join(format!("{nth}.txt")),
                "words and words\n".repeat(nth % 1000 + 1),
            )?;
        }
        fs::write(sources.join("include/all.h"), all)?;
        let main = format!(
            "#include \"../include/all.h\"\nint main(int x, char **y) {{ printf(\"%d\\n\", 0{sum}); return 0; }}\n"
        );
        fs::write(sources.join("src/main.c"), main)?;
        let rules = format!(
            "CC=gcc\nCFLAGS=-O1\nprogram: src/main.o liball.a\n\t$(CC) -o $@ $^\n\
             liball.a:{objects}\n\tar rcs $@ $^\nsrc/%.o: src/%.c include/all.h\n\t$(CC) $(CFLAGS) -c -o $@ $<\n"
        );
        fs::write(sources.join("Makefile"), rules)?;
        run_program(&directory, "tar", &["-cf", "project.tar", "project"])?;
        Ok(SampleProject { directory })
    }

    pub(super) fn run(&self, directory: &Path) -> Result<Vec<FileMeasurement>> {
        let packed = self.directory.join("project.tar");
        let packed = packed.to_str().context("a path in text")?;
        let (_, copied) = timed(|| run_program(directory, "cp", &[packed, "project.tar"]))?;
        let (_, unpacked) = timed(|| run_program(directory, "tar", &["-xf", "project.tar"]))?;
        let project = directory.join("project");
        let (_, built) = timed(|| run_program(&project, "make", &["-s"]))?;
        let (_, built_again) = timed(|| run_program(&project, "make", &["-s"]))?;
        run_program(&project, "./program", &[])?;
        Ok(vec![
            FileMeasurement::time("project, cp", copied),
            FileMeasurement::time("project, untar", unpacked),
            FileMeasurement::time("project, make", built),
            FileMeasurement::time("project, make again", built_again),
        ])
    }

    pub(super) fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.directory).context("remove the project")
    }
}

fn source(nth: usize) -> String {
    let mut text = String::from("#include \"../include/all.h\"\n");
    for inner in 0..20 {
        let _ = writeln!(
            text,
            "static int g{inner}(int x) {{ char b[64]; memset(b, x, 64); return b[{inner}] * {nth} + x; }}"
        );
    }
    let sum = (0..20).fold(String::new(), |sum, inner| format!("{sum} + g{inner}(x)"));
    let _ = writeln!(text, "int f{nth}(int x) {{ return 0{sum}; }}");
    text
}

fn run_program(directory: &Path, name: &str, arguments: &[&str]) -> Result<()> {
    let ended = Command::new(name).args(arguments).current_dir(directory).output();
    let ended = ended.with_context(|| format!("run {name}"))?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{name} {}: {said}", arguments.join(" "));
    Ok(())
}
