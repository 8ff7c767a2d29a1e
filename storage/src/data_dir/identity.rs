//! The text of the identity file: the format, the cluster, the program that wrote it, and a checksum
//! of all that.

use super::{FORMAT_VERSION, PROGRAM_VERSION};

const FORMAT: &str = "format ";
const CLUSTER: &str = "cluster ";
const PROGRAM: &str = "program ";
const CHECKSUM: &str = "checksum ";

/// The content of an identity file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryIdentity {
    pub cluster_id: String,
    /// True if the file ends with its checksum. The first directories of format 7 have none.
    pub has_checksum: bool,
}

/// The reason an identity file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The directory has another format.
    #[error(
        "the data directory has format {found}, and this program reads format {FORMAT_VERSION}"
    )]
    Format {
        found: String,
        /// The version of the program that wrote the file, if it says so.
        program: Option<String>,
    },
    /// The bytes are not what was written.
    #[error("the checksum does not match, or lines are missing")]
    Corrupt,
}

impl DirectoryIdentity {
    /// The text of the file of a directory of this format.
    pub fn encode(cluster_id: &str) -> String {
        let lines = format!(
            "{FORMAT}{FORMAT_VERSION}\n{CLUSTER}{cluster_id}\n{PROGRAM}{PROGRAM_VERSION}\n"
        );
        let checksum = checksum_line(&lines);
        lines + &checksum
    }

    /// Decodes the bytes of the file.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn decode(bytes: &[u8]) -> Result<DirectoryIdentity, IdentityError> {
        let text = std::str::from_utf8(bytes).map_err(|_| IdentityError::Corrupt)?;
        let (lines, last) = split_last_line(text);
        let has_checksum = last == checksum_line(lines);
        if last.starts_with(CHECKSUM) && !has_checksum {
            return Err(IdentityError::Corrupt);
        }
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let format = field(FORMAT).ok_or(IdentityError::Corrupt)?;
        if format != FORMAT_VERSION.to_string() {
            let (found, program) = (format.to_owned(), field(PROGRAM).map(str::to_owned));
            return Err(IdentityError::Format { found, program });
        }
        let cluster_id = field(CLUSTER).filter(|id| !id.is_empty());
        let cluster_id = cluster_id.ok_or(IdentityError::Corrupt)?.to_owned();
        // Without a checksum it has these two lines and no others: with one, a flipped bit in the
        // last line, or in the end of the line before, must not make it a file of the first kind.
        let is_bare = text == format!("{FORMAT}{format}\n{CLUSTER}{cluster_id}\n")
            && !cluster_id.contains(char::is_whitespace);
        if has_checksum || is_bare {
            Ok(DirectoryIdentity { cluster_id, has_checksum })
        } else {
            Err(IdentityError::Corrupt)
        }
    }
}

fn checksum_line(lines: &str) -> String {
    format!("{CHECKSUM}{:08x}\n", crc32c::crc32c(lines.as_bytes()))
}

/// The lines before the last one, and the last one.
fn split_last_line(text: &str) -> (&str, &str) {
    let before = text.strip_suffix('\n').unwrap_or(text);
    text.split_at(before.rfind('\n').map_or(0, |end| end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<DirectoryIdentity, IdentityError> {
        DirectoryIdentity::decode(text.as_bytes())
    }

    #[test]
    fn an_identity_reads_as_it_was_written() {
        let text = DirectoryIdentity::encode("Zm9v-cluster");
        let lines = format!("format 7\ncluster Zm9v-cluster\nprogram {PROGRAM_VERSION}\nchecksum ");
        assert!(text.starts_with(&lines), "{text}");
        let expected =
            DirectoryIdentity { cluster_id: "Zm9v-cluster".to_owned(), has_checksum: true };
        assert_eq!(decode(&text), Ok(expected));
    }

    #[test]
    fn every_flipped_bit_of_an_identity_is_noticed() {
        let good = DirectoryIdentity::encode("Zm9vYmFyMDEyMzQ1Njc4_w").into_bytes();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(DirectoryIdentity::decode(&bad), Err(IdentityError::Corrupt), "bit {bit}");
        }
    }

    #[test]
    fn an_identity_that_is_cut_short_is_noticed() {
        let good = DirectoryIdentity::encode("c1");
        let bare = "format 7\ncluster c1\n";
        for length in 0..good.len() {
            let decoded = decode(&good[..length]);
            assert_eq!(decoded.is_ok(), length == bare.len(), "{length}: {decoded:?}");
        }
    }

    #[test]
    fn two_lines_alone_are_an_identity_without_a_checksum() {
        let bare = DirectoryIdentity { cluster_id: "c1".to_owned(), has_checksum: false };
        assert_eq!(decode("format 7\ncluster c1\n"), Ok(bare));
        for bad in [
            "",
            "format 7\n",
            "format 7\ncluster \n",
            "format 7\ncluster c1",
            "format 7\ncluster c 1\n",
            "format 7\ncluster c1\nmore 1\n",
            "cluster c1\nformat 7\n",
        ] {
            assert_eq!(decode(bad), Err(IdentityError::Corrupt), "{bad:?}");
        }
    }

    #[test]
    fn lines_of_a_later_program_are_skipped_under_a_checksum() {
        let lines = "format 7\ncluster c1\nmore 1\n";
        let text = format!("{lines}{}", checksum_line(lines));
        assert_eq!(decode(&text).unwrap().cluster_id, "c1");
    }

    #[test]
    fn an_identity_of_another_format_is_named_with_its_program() {
        for (more, program) in [("", None), ("program 9.1.0\n", Some("9.1.0".to_owned()))] {
            let lines = format!("format 8\nname c1\n{more}");
            let expected = IdentityError::Format { found: "8".to_owned(), program };
            for text in [lines.clone(), format!("{lines}{}", checksum_line(&lines))] {
                assert_eq!(decode(&text), Err(expected.clone()));
            }
        }
    }
}
