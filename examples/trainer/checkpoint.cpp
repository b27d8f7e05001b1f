#include "checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "model/random.hpp"
#include "schedule.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "chorus-trainer checkpoint 2\n";
constexpr std::string_view kUnfinished = ".unfinished";

[[noreturn]] void reject(const std::string& sentence) { throw chorus::InputError(sentence); }

std::string file_of(const std::string& directory, int rank) {
  return fmt::format("{}/rank-{:04}.bin", directory, rank);
}

/// What every file of a checkpoint begins with; alike in all of them but for Progress::reductions.
struct Header {
  std::string model;
  std::string keeps;  ///< keeps_of()
  std::int64_t ranks = 0;
  std::uint64_t seed = 0;
  std::uint64_t data = 0;  ///< fingerprint
  Progress progress;
};

/// Part of a tensor: elements [begin, begin + count), row by row, of the rectangle that was here.
struct Part {
  std::string name;
  std::int64_t rows, cols, row, row_count, col, col_count, begin, count;
};

class Writer {
 public:
  template <class T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    number(static_cast<std::uint64_t>(value.size()));
    bytes_.append(value);
  }
  /// Of the device's memory.
  void floats(Ops<float>& ops, const float* values, std::size_t count) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + count * sizeof(float));
    ops.to_host(bytes_.data() + at, values, count * sizeof(float));
  }
  void raw(std::string_view value) { bytes_.append(value); }

  /// Writes everything and its checksum, and returns when the disk has it.
  void finish(const std::string& path) {
    number(checksum(bytes_));
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool good = fd >= 0;
    for (std::size_t at = 0; good && at < bytes_.size();) {
      const ssize_t n = ::write(fd, bytes_.data() + at, bytes_.size() - at);
      good = n > 0;
      at += good ? static_cast<std::size_t>(n) : 0;
    }
    good = good && ::fsync(fd) == 0;
    const int cause = errno;
    if (fd >= 0) ::close(fd);
    if (!good) reject(fmt::format("cannot write {}: {}", path, std::strerror(cause)));
  }

 private:
  std::string bytes_;
};

/// Reads what Writer wrote and believes nothing that the file does not hold.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {
    std::error_code none;
    if (fs::exists(path_, none) && !fs::is_regular_file(path_, none)) {
      reject(path_ + " is not a file; remove its directory to resume from the one before");
    }
    std::ifstream file(path_, std::ios::binary);
    if (!file) {
      reject(fmt::format("cannot open {}: {}; remove its directory to resume from the one before",
                         path_, std::strerror(errno)));
    }
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    std::uint64_t expected = 0;
    if (bytes_.size() < sizeof expected) torn();
    end_ = bytes_.size() - sizeof expected;
    std::memcpy(&expected, bytes_.data() + end_, sizeof expected);
    if (checksum(std::string_view(bytes_).substr(0, end_)) != expected) torn();
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number<std::uint64_t>();
    return {take(size), size};
  }
  const char* take(std::uint64_t size) {
    if (size > end_ - at_) torn();
    at_ += size;
    return bytes_.data() + at_ - size;
  }
  [[noreturn]] void torn() const {
    reject(path_ +
           " is torn or was changed: it does not hold what it should; remove its directory to "
           "resume from the one before");
  }
  [[nodiscard]] std::size_t left() const { return end_ - at_; }

 private:
  std::string path_;
  std::string bytes_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
};

/// What ranks keep to themselves from step to step (Store::kept) and what its shape depends on;
/// empty where they keep nothing.
std::string keeps_of(const Config& config) {
  const Training& t = config.training;
  const Layout& l = config.layout;
  const bool apart = t.average != Average::gradients;
  const bool compressed = t.compression != Compression::none;
  const bool power = t.compression == Compression::power;
  if (l.dp == 1 || !(apart || power || (compressed && (t.error_feedback || t.differences)))) {
    return "";
  }
  const std::string kept =
      apart ? fmt::format("--average {}", name_of(t.average))
            : fmt::format("--compress {}{}{}{}", name_of(t.compression),
                          power ? fmt::format(" --rank {}", t.power_rank) : "",
                          t.differences ? " --ef21" : "",
                          t.error_feedback || t.differences ? "" : " --no-error-feedback");
  return fmt::format("--dp {} --tp {} --pp {} --ep {} --virtual-stages {} --partition {} {}", l.dp,
                     l.tp, l.pp, l.ep, l.virtual_stages,
                     fmt::join(partition_of(config.model, l), ","), kept);
}

Header header_of(const Trainer<float>& trainer) {
  const Config& config = trainer.config();
  return {.model = config.model.signature(),
          .keeps = keeps_of(config),
          .ranks = config.layout.world_size(),
          .seed = config.training.seed,
          .data = trainer.data().fingerprint(),
          .progress = trainer.progress()};
}

void write_header(Writer& out, const Header& header) {
  out.raw(kMagic);
  out.text(header.model);
  out.text(header.keeps);
  out.number(header.ranks);
  out.number(header.seed);
  out.number(header.data);
  out.number(static_cast<std::int64_t>(header.progress.steps));
  out.number(header.progress.sequences);
  out.number(header.progress.loss_scale);
  out.number(static_cast<std::int64_t>(header.progress.good_steps));
  out.number(header.progress.reductions);
}

Header read_header(Reader& in, const std::string& path) {
  if (in.left() < kMagic.size() ||
      std::string_view(in.take(kMagic.size()), kMagic.size()) != kMagic) {
    reject(path + " is not a checkpoint of this version of the trainer");
  }
  constexpr std::int64_t kMost = 2'000'000'000;
  Header header;
  header.model = in.text();
  header.keeps = in.text();
  header.ranks = in.number<std::int64_t>();
  header.seed = in.number<std::uint64_t>();
  header.data = in.number<std::uint64_t>();
  const auto steps = in.number<std::int64_t>();
  header.progress.sequences = in.number<std::uint64_t>();
  header.progress.loss_scale = in.number<double>();
  const auto good_steps = in.number<std::int64_t>();
  header.progress.reductions = in.number<std::uint64_t>();
  const double scale = header.progress.loss_scale;
  int exponent = 0;
  const bool power = scale == 0 || (std::isfinite(scale) && std::frexp(scale, &exponent) == 0.5);
  if (header.ranks < 1 || header.ranks > 1'000'000 || steps < 0 || steps > kMost ||
      good_steps < 0 || good_steps > kMost || !power) {
    in.torn();
  }
  header.progress.steps = static_cast<int>(steps);
  header.progress.good_steps = static_cast<int>(good_steps);
  return header;
}

/// Whether this rank writes its part of `p`: one of those that hold the same.
bool writes(Trainer<float>& trainer, const Segment<float>& s, const Param& p) {
  const bool first_replica = trainer.config().layout.zero > 0 || s.group->rank() == 0;
  return s.counted && first_replica && (p.sliced() || trainer.groups().tensor.rank() == 0);
}

void write_rank(Trainer<float>& trainer, const std::string& path) {
  Writer out;
  const Header header = header_of(trainer);
  write_header(out, header);
  for (const auto& s : trainer.store().segments()) {
    for (const Param& p : s->params) {
      const std::size_t first = std::max(p.offset, s->begin);
      const std::size_t last = std::min(p.offset + p.count(), s->begin + s->shard);
      if (first >= last || !writes(trainer, *s, p)) continue;
      out.text(p.name);
      for (const std::int64_t x :
           {std::int64_t{p.rows}, std::int64_t{p.cols}, std::int64_t{p.row},
            std::int64_t{p.row_count}, std::int64_t{p.col}, std::int64_t{p.col_count},
            static_cast<std::int64_t>(first - p.offset), static_cast<std::int64_t>(last - first)}) {
        out.number(x);
      }
      const std::size_t at = first - s->begin;
      for (const float* values : {s->own_values, s->moment1, s->moment2}) {
        out.floats(trainer.ops(), values + at, last - first);
      }
    }
  }
  out.text("");
  if (!header.keeps.empty()) {
    for (const auto& kept : trainer.store().kept()) {
      out.text(kept.name);
      out.number(static_cast<std::uint64_t>(kept.elements.size()));
      out.floats(trainer.ops(), kept.elements.data(), kept.elements.size());
    }
  }
  out.text("");
  out.finish(path);
}

Part read_part(Reader& in, const std::string& name) {
  Part part{name, 0, 0, 0, 0, 0, 0, 0, 0};
  for (std::int64_t* x : {&part.rows, &part.cols, &part.row, &part.row_count, &part.col,
                          &part.col_count, &part.begin, &part.count}) {
    *x = in.number<std::int64_t>();
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  for (const std::int64_t x : {part.rows, part.cols, part.row_count, part.col_count}) {
    if (x < 1 || x >= kMost) in.torn();
  }
  if (part.row < 0 || part.row > part.rows - part.row_count || part.col < 0 ||
      part.col > part.cols - part.col_count || part.begin < 0 || part.count < 0 ||
      part.begin > part.row_count * part.col_count - part.count ||
      static_cast<std::uint64_t>(part.count) > in.left() / (3 * sizeof(float))) {
    in.torn();
  }
  return part;
}

/// Copies what `part` has of `p`; returns how many elements of this rank's shard it had.
std::size_t restore(Trainer<float>& trainer, Segment<float>& s, const Param& p, const Part& part,
                    const char* values) {
  const bool whole = trainer.config().layout.zero < 3;
  const auto count = static_cast<std::size_t>(part.count);
  std::size_t restored = 0;
  /// Elements [i, i + n) of the part's k-th kind, which lie side by side on both sides.
  const auto copy = [&](float* to, std::size_t k, std::size_t i, std::size_t n) {
    trainer.ops().to_device(to, values + (k * count + i) * sizeof(float), n * sizeof(float));
  };
  const std::int64_t last = part.begin + part.count;
  for (std::int64_t flat = part.begin; flat < last;) {
    const std::int64_t row = part.row + flat / part.col_count - p.row;
    const std::int64_t first_col = part.col + flat % part.col_count;
    const std::int64_t end_col =
        std::min<std::int64_t>(part.col + part.col_count, first_col + last - flat);
    const std::int64_t from = std::max<std::int64_t>(first_col, p.col);
    const std::int64_t to = std::min<std::int64_t>(end_col, p.col + p.col_count);
    const auto i = static_cast<std::size_t>(flat - part.begin + from - first_col);
    flat += end_col - first_col;
    if (row < 0 || row >= p.row_count || from >= to) continue;
    const std::size_t at = p.offset + static_cast<std::size_t>(row * p.col_count + from - p.col);
    const std::size_t end = at + static_cast<std::size_t>(to - from);
    if (whole) copy(s.values + at, 0, i, end - at);
    const std::size_t own = std::max(at, s.begin);
    const std::size_t own_end = std::min(end, s.begin + s.shard);
    if (own >= own_end) continue;
    float* const mine[3] = {s.own_values, s.moment1, s.moment2};
    for (std::size_t k = 0; k < 3; ++k) {
      copy(mine[k] + (own - s.begin), k, i + (own - at), own_end - own);
    }
    restored += own_end - own;
  }
  return restored;
}

/// Restores what the parts of a file have of this rank's; returns the elements of its shards.
std::size_t restore_parts(Trainer<float>& trainer, Reader& in) {
  std::size_t restored = 0;
  for (std::string name = in.text(); !name.empty(); name = in.text()) {
    const Part part = read_part(in, name);
    const char* values = in.take(static_cast<std::uint64_t>(part.count) * 3 * sizeof(float));
    for (const auto& s : trainer.store().segments()) {
      for (const Param& p : s->params) {
        if (p.name != name) continue;
        if (p.rows != part.rows || p.cols != part.cols) in.torn();
        restored += restore(trainer, *s, p, part, values);
      }
    }
  }
  return restored;
}

void restore_kept(Trainer<float>& trainer, Reader& in) {
  for (const auto& kept : trainer.store().kept()) {
    if (in.text() != kept.name || in.number<std::uint64_t>() != kept.elements.size()) in.torn();
    const std::size_t bytes = kept.elements.size_bytes();
    trainer.ops().to_device(kept.elements.data(), in.take(bytes), bytes);
  }
  if (!in.text().empty()) in.torn();
}

/// Throws where `found` cannot be gone on from. Returns what does not go on as it was.
std::string differences(const Header& found, const Header& mine, const std::string& path) {
  if (found.model != mine.model) {
    reject(fmt::format("{} holds another model: it has {}, the command line asks for {}", path,
                       found.model, mine.model));
  }
  std::vector<std::string> notes;
  const bool drifted = found.keeps.find("--average") != std::string::npos;
  if (found.keeps != mine.keeps && !found.keeps.empty()) {
    if (drifted || !mine.keeps.empty()) {
      reject(fmt::format(
          "{} holds {} under {}; the command line asks for {}: go on with those options{}", path,
          drifted ? "replicas that drifted apart" : "what compression lost on each rank",
          found.keeps, mine.keeps.empty() ? "none of it" : mine.keeps,
          drifted ? "" : ", or with --compress none, which forgets it"));
    }
    notes.push_back("what compression lost so far is forgotten");
  }
  if (found.seed != mine.seed) {
    notes.push_back(fmt::format("other sequences follow: --seed was {}", found.seed));
  }
  if (found.data != mine.data) notes.push_back("other sequences follow: --data was another text");
  return fmt::format("{}", fmt::join(notes, "; "));
}

/// Two files of one checkpoint say the same of it.
bool alike(const Header& a, const Header& b) {
  return a.model == b.model && a.keeps == b.keeps && a.ranks == b.ranks && a.seed == b.seed &&
         a.data == b.data && a.progress.steps == b.progress.steps &&
         a.progress.sequences == b.progress.sequences &&
         a.progress.loss_scale == b.progress.loss_scale &&
         a.progress.good_steps == b.progress.good_steps;
}

std::string load(Trainer<float>& trainer, const std::string& path) {
  const Header mine = header_of(trainer);
  const int place = trainer.groups().place.index;
  Header first;
  Progress progress;
  std::string notes;
  std::size_t restored = 0;
  for (std::int64_t r = 0; r == 0 || r < first.ranks; ++r) {
    const std::string file = file_of(path, static_cast<int>(r));
    Reader in(file);
    const Header header = read_header(in, file);
    if (r == 0) {
      notes = differences(header, mine, file);
      first = header;
      progress = header.progress;
      progress.reductions = 0;
    }
    if (!alike(header, first)) {
      reject(
          fmt::format("{} and {} are not of the same checkpoint; remove their directory to resume "
                      "from the one before",
                      file, file_of(path, 0)));
    }
    restored += restore_parts(trainer, in);
    if (header.keeps != mine.keeps || r != place) continue;
    progress.reductions = header.progress.reductions;
    if (!mine.keeps.empty()) restore_kept(trainer, in);
  }
  std::size_t expected = 0;
  for (const auto& s : trainer.store().segments()) {
    const std::size_t end = std::min(s->begin + s->shard, s->count);
    expected += end > s->begin ? end - s->begin : 0;
  }
  if (restored != expected) {
    reject(
        fmt::format("{} has {} of the {} elements that this rank needs", path, restored, expected));
  }
  trainer.resume_at(progress);
  return notes;
}

/// The directories of checkpoints, in their order; `suffix`: kUnfinished or nothing.
std::vector<std::string> checkpoints_in(const std::string& directory,
                                        std::string_view suffix = "") {
  constexpr std::size_t kNumbered = 13;
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory, none)) {
    const std::string name = entry.path().filename().string();
    const std::string number = name.substr(0, kNumbered);
    const bool numbered = number.size() == kNumbered && number.starts_with("step-") &&
                          number.find_first_not_of("0123456789", 5) == std::string::npos;
    if (!numbered || name.substr(kNumbered) != suffix) continue;
    if (entry.is_directory(none)) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  return found;
}

/// Gives the files of all ranks their final name.
void finish(int ranks, const std::string& unfinished, const std::string& name,
            const std::string& directory) {
  std::error_code cause;
  for (int r = 0; r < ranks; ++r) {
    if (fs::exists(file_of(unfinished, r), cause)) continue;
    reject(fmt::format("{} is not where rank 0 looks: all ranks must see the same directory",
                       file_of(unfinished, r)));
  }
  fs::remove_all(name, cause);
  fs::rename(unfinished, name, cause);
  if (cause) reject(fmt::format("cannot name {}: {}", name, cause.message()));
  const std::vector<std::string> all = checkpoints_in(directory);
  for (std::size_t i = 0; i + 2 < all.size(); ++i) fs::remove_all(all[i], cause);
  // Attempts of runs that were killed meanwhile, which nobody else would ever remove.
  for (const std::string& left : checkpoints_in(directory, kUnfinished)) {
    fs::remove_all(left, cause);
  }
}

}  // namespace

std::string save_checkpoint(Trainer<float>& trainer, const std::string& directory) {
  Groups& groups = trainer.groups();
  groups.flights.wait_all();
  const int rank = groups.world.rank();
  std::string name = fmt::format("{}/step-{:08}", directory, trainer.steps_done());
  const std::string unfinished = name + std::string(kUnfinished);
  try {
    trainer.agree([&] {
      std::error_code cause;
      fs::create_directories(unfinished, cause);
      if (cause) reject(fmt::format("cannot make {}: {}", unfinished, cause.message()));
      write_rank(trainer, file_of(unfinished, rank));
    });
  } catch (const chorus::InputError&) {
    std::error_code none;  // a full disk stays no fuller than it was
    if (rank == 0) fs::remove_all(unfinished, none);
    throw;
  }
  trainer.agree([&] {
    if (rank == 0) finish(trainer.config().layout.world_size(), unfinished, name, directory);
  });
  return name;
}

std::optional<std::string> last_checkpoint(const std::string& directory) {
  const std::vector<std::string> all = checkpoints_in(directory);
  if (all.empty()) return std::nullopt;
  return all.back();
}

std::string load_checkpoint(Trainer<float>& trainer, const std::string& path) {
  trainer.groups().flights.wait_all();
  std::string notes;
  trainer.agree([&] { notes = load(trainer, path); });
  return notes;
}

}  // namespace trainer
