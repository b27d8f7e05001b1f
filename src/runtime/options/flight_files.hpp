// Where flight records lie: a private folder, files that nobody else can have prepared, and not
// more of them than somebody may still want to read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace chorus {

/// A time in UTC, as strftime() writes it.
[[nodiscard]] std::string utc(std::uint64_t unix_us, const char* format);

/// One joining of all ranks, alike on all of them and different for any two:
/// "20261123T014209-9a401bc8", in the order of time. `began_us`: Unix time; `tag`: 8 hex digits.
[[nodiscard]] std::string flight_job(std::uint64_t began_us, std::string_view tag);

/// The folder that Options::flight_dir means: itself, or for "auto" $XDG_STATE_HOME/chorus, else
/// chorus-<user id> in $TMPDIR or /tmp.
[[nodiscard]] std::string flight_folder(const std::string& flight_dir);

/// Writes a new file "chorus-flight-<job>-<communicator>-<rank>-<pid>.json", readable by its owner
/// alone, through no symbolic link and over no other file, and returns its path. The folder is made
/// if there is none; that of "auto" must be the user's own, and what is old in it is removed: other
/// than the latest kFlightJobs jobs, what is older than kFlightDays days, and of one process all
/// but the latest kFlightsOfProcess. Throws InputError naming the path, the cause and the remedy.
std::string write_flight(const std::string& flight_dir, std::string_view job,
                         std::string_view communicator, int rank, std::string_view text);
inline constexpr std::size_t kFlightJobs = 16, kFlightsOfProcess = 16;
inline constexpr int kFlightDays = 30;

/// The records in `folder` of the job that failed last, by name. Throws InputError if there are
/// none.
[[nodiscard]] std::vector<std::string> latest_flights(const std::string& folder);

}  // namespace chorus
