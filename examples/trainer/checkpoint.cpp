#include "checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "random.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "chorus-trainer checkpoint 1\n";

[[noreturn]] void reject(const std::string& sentence) { throw chorus::InputError(sentence); }

std::string file_of(const std::string& directory, int rank) {
  return fmt::format("{}/rank-{:04}.bin", directory, rank);
}

/// Part of a tensor: elements [begin, begin + count), row by row, of the rectangle that was here.
struct Part {
  std::string name;
  std::int64_t rows, cols, row, row_count, col, col_count, begin, count;
};

std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t sum = 0;
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof word) {
    word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof word, bytes.size() - i));
    sum = mixed(sum ^ word);
  }
  return sum;
}

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
  void floats(const float* values, std::size_t count) {
    bytes_.append(reinterpret_cast<const char*>(values), count * sizeof(float));
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
    std::ifstream file(path_, std::ios::binary);
    if (!file) reject("cannot open " + path_);
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
    reject(path_ + " is torn or was changed: its checksum does not fit; resume from an older one");
  }

 private:
  std::string path_;
  std::string bytes_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
};

/// Whether this rank writes its part of `p`: one of those that hold the same.
bool writes(Trainer<float>& trainer, const Segment<float>& s, const Param& p) {
  const bool first_replica = trainer.config().layout.zero > 0 || s.group->rank() == 0;
  return s.counted && first_replica && (p.sliced() || trainer.groups().tensor.rank() == 0);
}

void write_rank(Trainer<float>& trainer, const std::string& path) {
  Writer out;
  out.raw(kMagic);
  out.text(trainer.config().model.signature());
  out.number(static_cast<std::int64_t>(trainer.config().layout.world_size()));
  out.number(static_cast<std::int64_t>(trainer.steps_done()));
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
        out.floats(values + at, last - first);
      }
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
      part.begin > part.row_count * part.col_count - part.count) {
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
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t flat = part.begin + static_cast<std::int64_t>(i);
    const std::int64_t row = part.row + flat / part.col_count - p.row;
    const std::int64_t col = part.col + flat % part.col_count - p.col;
    if (row < 0 || row >= p.row_count || col < 0 || col >= p.col_count) continue;
    const std::size_t at = p.offset + static_cast<std::size_t>(row * p.col_count + col);
    float x[3];
    for (std::size_t k = 0; k < 3; ++k) {
      std::memcpy(&x[k], values + (k * count + i) * sizeof(float), sizeof(float));
    }
    if (whole) s.values[at] = x[0];
    if (at < s.begin || at >= s.begin + s.shard) continue;
    s.own_values[at - s.begin] = x[0];
    s.moment1[at - s.begin] = x[1];
    s.moment2[at - s.begin] = x[2];
    ++restored;
  }
  return restored;
}

std::size_t load_file(Trainer<float>& trainer, const std::string& path, std::int64_t& ranks,
                      std::int64_t& step) {
  Reader in(path);
  if (std::string_view(in.take(sizeof kMagic - 1), sizeof kMagic - 1) != kMagic) {
    reject(path + " is not a checkpoint of this trainer");
  }
  const std::string model = in.text();
  if (model != trainer.config().model.signature()) {
    reject(fmt::format("{} holds another model: it has {}, the command line asks for {}", path,
                       model, trainer.config().model.signature()));
  }
  ranks = in.number<std::int64_t>();
  step = in.number<std::int64_t>();
  if (ranks < 1 || ranks > 1'000'000 || step < 0 || step > 2'000'000'000) in.torn();
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

std::vector<std::string> checkpoints_in(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory, none)) {
    const std::string name = entry.path().filename().string();
    if (name.size() == 13 && name.starts_with("step-")) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string save_checkpoint(Trainer<float>& trainer, const std::string& directory) {
  Groups& groups = trainer.groups();
  groups.flights.wait_all();
  const int rank = groups.world.rank();
  std::string name = fmt::format("{}/step-{:08}", directory, trainer.steps_done());
  const std::string unfinished = name + ".unfinished";
  std::error_code cause;
  fs::create_directories(unfinished, cause);
  if (cause) reject(fmt::format("cannot make {}: {}", unfinished, cause.message()));
  write_rank(trainer, file_of(unfinished, rank));
  trainer.barrier();
  if (rank == 0) {
    fs::remove_all(name, cause);
    fs::rename(unfinished, name, cause);
    if (cause) reject(fmt::format("cannot name {}: {}", name, cause.message()));
    const std::vector<std::string> all = checkpoints_in(directory);
    for (std::size_t i = 0; i + 2 < all.size(); ++i) fs::remove_all(all[i], cause);
  }
  trainer.barrier();
  return name;
}

std::optional<std::string> last_checkpoint(const std::string& directory) {
  const std::vector<std::string> all = checkpoints_in(directory);
  if (all.empty()) return std::nullopt;
  return all.back();
}

void load_checkpoint(Trainer<float>& trainer, const std::string& path) {
  trainer.groups().flights.wait_all();
  std::int64_t ranks = 1;
  std::int64_t step = 0;
  std::size_t restored = 0;
  for (std::int64_t r = 0; r < ranks; ++r) {
    restored += load_file(trainer, file_of(path, static_cast<int>(r)), ranks, step);
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
  trainer.resume_at(static_cast<int>(step));
}

}  // namespace trainer
