#include "runtime/options/flight_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"
#include "runtime/options/options_env.hpp"

namespace chorus {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "chorus-flight-";
constexpr std::string_view kSuffix = ".json";
constexpr std::size_t kJobLength = 24;  // of "20261123T014209-9a401bc8"

/// A record, by what its name and the file system say of it.
struct Flight {
  std::string name, job, pid;
  std::int64_t written_s = 0;
};

bool is_job(std::string_view text) {
  constexpr std::string_view kShape = "dddddddd.dddddd-xxxxxxxx";
  static_assert(kShape.size() == kJobLength);
  if (text.size() != kShape.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool good = kShape[i] == 'd'   ? std::isdigit(c) != 0
                      : kShape[i] == 'x' ? std::isxdigit(c) != 0
                      : kShape[i] == '.' ? c == 'T'
                                         : c == '-';
    if (!good) return false;
  }
  return true;
}

/// Nothing for a file that is no record.
std::optional<Flight> flight_of(const fs::path& path) {
  std::string name = path.filename().string();
  const std::string_view text = name;
  if (!text.starts_with(kPrefix) || !text.ends_with(kSuffix)) return std::nullopt;
  const std::string_view rest =
      text.substr(kPrefix.size(), text.size() - kPrefix.size() - kSuffix.size());
  const auto last = rest.rfind('-');
  if (rest.size() <= kJobLength || !is_job(rest.substr(0, kJobLength)) || last <= kJobLength) {
    return std::nullopt;
  }
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  Flight flight;
  flight.job = rest.substr(0, kJobLength);
  flight.pid = rest.substr(last + 1);
  flight.written_s = status.st_mtim.tv_sec;
  flight.name = std::move(name);
  return flight;
}

/// Latest first.
std::vector<Flight> flights_in(const std::string& folder) {
  std::vector<Flight> flights;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (auto flight = flight_of(entry.path())) flights.push_back(std::move(*flight));
  }
  std::sort(flights.begin(), flights.end(), [](const Flight& a, const Flight& b) {
    return a.written_s != b.written_s ? a.written_s > b.written_s : a.name > b.name;
  });
  return flights;
}

/// Another rank of this host may do the same at this moment: what is gone is gone.
void remove_old(const std::string& folder, int directory) {
  std::set<std::string> jobs;
  std::map<std::pair<std::string, std::string>, std::size_t> of_process;
  const std::int64_t oldest_s = ::time(nullptr) - std::int64_t{kFlightDays} * 86'400;
  for (const Flight& flight : flights_in(folder)) {
    jobs.insert(flight.job);
    const std::size_t nth = ++of_process[{flight.job, flight.pid}];
    if (flight.written_s < oldest_s || jobs.size() > kFlightJobs || nth > kFlightsOfProcess) {
      ::unlinkat(directory, flight.name.c_str(), 0);
    }
    if (jobs.size() > kFlightJobs) jobs.erase(flight.job);
  }
}

[[noreturn]] void refuse(const std::string& path, std::string_view why) {
  throw InputError(fmt::format(
      "{}: {}; CHORUS_FLIGHT_DIR names another folder for flight records, or none", path, why));
}

/// In a folder that all may write to, such as /tmp, another user may have made it first.
Fd open_private(const std::string& folder) {
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  ::mkdir(folder.c_str(), 0700);
  Fd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) refuse(folder, std::strerror(errno));
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) refuse(folder, std::strerror(errno));
  if (status.st_uid != ::geteuid()) {
    refuse(folder, fmt::format("belongs to user {}, not to {}", status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & 0077) != 0 && ::fchmod(directory.get(), 0700) != 0) {
    refuse(folder, "is open to other users");
  }
  return directory;
}

Fd open_named(const std::string& folder) {
  ::mkdir(folder.c_str(), 0700);
  Fd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) refuse(folder, std::strerror(errno));
  return directory;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

std::string utc(std::uint64_t unix_us, const char* format) {
  const auto seconds = static_cast<std::time_t>(unix_us / 1'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &parts)};
}

std::string flight_job(std::uint64_t began_us, std::string_view tag) {
  return fmt::format("{}-{}", utc(began_us, "%Y%m%dT%H%M%S"), tag.substr(0, 8));
}

std::string flight_folder(const std::string& flight_dir) {
  if (flight_dir != kAutomaticFlightDir) return flight_dir;
  if (const auto state = env("XDG_STATE_HOME")) return *state + "/chorus";
  return fmt::format("{}/chorus-{}", env("TMPDIR").value_or("/tmp"), ::geteuid());
}

std::string write_flight(const std::string& flight_dir, std::string_view job,
                         std::string_view communicator, int rank, std::string_view text) {
  const std::string folder = flight_folder(flight_dir);
  const bool automatic = flight_dir == kAutomaticFlightDir;
  const Fd directory = automatic ? open_private(folder) : open_named(folder);
  std::string name =
      fmt::format("{}{}-{}-{}-{}{}", kPrefix, job, communicator, rank, ::getpid(), kSuffix);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; },
      '_');
  std::string path = folder + "/" + name;
  const Fd file(::openat(directory.get(), name.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) refuse(path, std::strerror(errno));
  if (!write_all(file.get(), text)) {
    const std::string why = std::strerror(errno);
    ::unlinkat(directory.get(), name.c_str(), 0);
    refuse(path, why);
  }
  if (automatic) remove_old(folder, directory.get());
  return path;
}

std::vector<std::string> latest_flights(const std::string& folder) {
  const std::vector<Flight> flights = flights_in(folder);
  if (flights.empty()) {
    throw InputError(fmt::format(
        "there are no flight records in {}: ranks leave them when a collective fails, in the "
        "folder of CHORUS_FLIGHT_DIR",
        folder));
  }
  std::vector<std::string> paths;
  for (const Flight& flight : flights) {
    if (flight.job == flights.front().job) paths.push_back(folder + "/" + flight.name);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace chorus
