#include "config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <numeric>

#include "chorus/error.hpp"

namespace trainer {
namespace {

[[noreturn]] void refuse_config(const std::string& sentence) { throw chorus::InputError(sentence); }

constexpr std::string_view kPipelineNames[] = {"gpipe", "1f1b", "interleaved", "zero-bubble"};
constexpr std::string_view kRecomputeNames[] = {"none", "selective", "full"};

constexpr std::string_view kCompressionNames[] = {"none", "qsgd",  "1bit",
                                                  "topk", "power", "threshold"};
constexpr std::string_view kAverageNames[] = {"gradients", "local", "ring", "grid", "exponential"};
constexpr std::string_view kBackendNames[] = {"cpu", "cuda", "cuda-emulated"};

template <class Kind, std::size_t n>
Kind by_name(const std::string_view (&names)[n], std::string_view name, std::string_view option) {
  for (std::size_t i = 0; i < n; ++i) {
    if (names[i] == name) return static_cast<Kind>(i);
  }
  refuse_config(fmt::format("{} {} is none of {}", option, name, fmt::join(names, ", ")));
}

/// The divisor of `whole` that is nearest to `wanted`.
int nearest_divisor(int whole, int wanted) {
  int best = 1;
  for (int d = 1; d <= whole; ++d) {
    if (whole % d == 0 && std::abs(d - wanted) < std::abs(best - wanted)) best = d;
  }
  return best;
}

void must_divide(int parts, std::string_view option, int whole, std::string_view what) {
  if (whole % parts == 0) return;
  refuse_config(fmt::format("{} {} does not divide {} {}; the nearest that does is {} {}", option,
                            parts, whole, what, option, nearest_divisor(whole, parts)));
}

void at_least(long value, long least, std::string_view what) {
  if (value < least)
    refuse_config(fmt::format("{} is {}; it must be at least {}", what, value, least));
}

void between(long value, long least, long most, std::string_view what) {
  at_least(value, least, what);
  if (value > most)
    refuse_config(fmt::format("{} is {}; it must be at most {}", what, value, most));
}

/// Of a real number; not NaN.
void within(double value, double least, double most, std::string_view what) {
  if (value >= least && value <= most) return;
  refuse_config(fmt::format("{} is {}; it must be in {} … {}", what, value, least, most));
}

/// Products of these are counted in 64 bits, single ones in 32.
constexpr long kMost = 10'000'000;
constexpr long kMostRanks = 1'000'000;
constexpr double kLargest = 1e30;

void check_model(const Model& m) {
  between(m.vocab, 2, kMost, "the vocabulary (--vocab)");
  between(m.context, 2, kMost, "the sequence length (--context)");
  between(m.layers, 1, 10'000, "the number of layers (--layers)");
  between(m.width, 1, kMost, "the width (--width)");
  between(m.heads, 1, kMost, "the number of heads (--heads)");
  between(m.feed_forward, 0, 4 * kMost, "the feed-forward width (--feed-forward)");
  between(m.experts, 0, kMost, "the number of experts (--experts)");
  within(m.capacity, 0, kLargest, "--capacity");
  within(m.balance_loss, 0, kLargest, "--balance-loss");
  must_divide(m.heads, "--heads", m.width, "columns (--width)");
  if (m.experts > 0 && (m.top_k < 1 || m.top_k > m.experts)) {
    refuse_config(
        fmt::format("--top-k {} is not between 1 and the {} experts", m.top_k, m.experts));
  }
}

void check_training(const Training& t) {
  between(t.batch, 1, kMost, "--batch");
  at_least(t.steps, 0, "--steps");
  within(t.learning_rate, 0, kLargest, "--learning-rate");
  within(t.min_learning_rate, 0, kLargest, "--min-learning-rate");
  at_least(t.warmup_steps, 0, "--warmup-steps");
  at_least(t.base_batch, 0, "--base-batch");
  within(t.weight_decay, 0, kLargest, "--weight-decay");
  within(t.clip, 0, kLargest, "--clip");
}

void check_pipeline(const Layout& l, const Model& m) {
  if (l.virtual_stages > 1 && l.pipeline != Pipeline::interleaved) {
    refuse_config(fmt::format("--virtual-stages {} needs --schedule interleaved, not {}",
                              l.virtual_stages, name_of(l.pipeline)));
  }
  if (l.pipeline == Pipeline::interleaved && l.pp > 1 && l.micro_batches % l.pp != 0) {
    refuse_config(
        fmt::format("the interleaved schedule needs micro-batches in multiples of --pp {}: {} is "
                    "not, {} is",
                    l.pp, l.micro_batches, (l.micro_batches + l.pp - 1) / l.pp * l.pp));
  }
  if (l.chunks() > m.layers) {
    refuse_config(fmt::format(
        "{} layers cannot fill {} chunks (--pp {} x --virtual-stages {}); use at most "
        "--pp {}",
        m.layers, l.chunks(), l.pp, l.virtual_stages, std::max(1, m.layers / l.virtual_stages)));
  }
  if (l.partition.empty()) return;
  const int sum = std::accumulate(l.partition.begin(), l.partition.end(), 0);
  if (static_cast<int>(l.partition.size()) != l.chunks() || sum != m.layers ||
      std::ranges::min(l.partition) < 1) {
    refuse_config(
        fmt::format("--partition {} must give each of the {} chunks one layer or more, {} in all",
                    fmt::join(l.partition, ","), l.chunks(), m.layers));
  }
}

void check_zero_plus_plus(const Layout& l, const Model& m) {
  if ((l.quantize_weights || l.secondary > 0) && l.zero != 3) {
    refuse_config(
        fmt::format("{} is about gathered values, which --zero {} does not have; use --zero 3",
                    l.secondary > 0 ? "--secondary" : "--quantize-weights", l.zero));
  }
  if (l.quantize_gradients && l.zero < 2) {
    refuse_config(
        fmt::format("--quantize-gradients needs sharded gradients; --zero {} keeps them whole, "
                    "use --zero 2 or --compress qsgd",
                    l.zero));
  }
  at_least(l.secondary, 0, "--secondary");
  if (l.secondary == 0) return;
  must_divide(l.secondary, "--secondary", l.dp, "replicas (--dp)");
  if (m.experts > 0) {
    refuse_config(
        fmt::format("--secondary {} is for dense models: the replicas of {} experts are spread "
                    "over nodes by --ep",
                    l.secondary, m.experts));
  }
}

/// The batch of one replica; `option`: what set it.
void check_batch(const Layout& l, const Model& m, int batch, const std::string& option) {
  between(
      batch * static_cast<long>(m.context), 1, 2'000'000'000,
      fmt::format("the number of tokens of a micro-batch ({} x --context {})", option, m.context));
  if (l.sequence_parallel) must_divide(l.tp, "--tp", batch * m.context, "tokens of a micro-batch");
  if (!l.halves) return;
  if (batch % 2 != 0) {
    refuse_config(fmt::format("{} {} has no two halves; with --halves use {} {}", option, batch,
                              option, batch + 1));
  }
  if (l.sequence_parallel) must_divide(l.tp, "--tp", batch / 2 * m.context, "tokens of a half");
}

void check_shares(const Layout& l, const Model& m, const Training& t) {
  if (l.shares.empty()) return check_batch(l, m, t.batch, "--batch");
  const std::string given = fmt::format("{}", fmt::join(l.shares, ","));
  if (static_cast<int>(l.shares.size()) != l.dp || std::ranges::min(l.shares) < 1) {
    refuse_config(
        fmt::format("--batch-shares {} must give each of the {} replicas (--dp) one sequence or "
                    "more per micro-batch",
                    given, l.dp));
  }
  if (t.average != Average::gradients) {
    refuse_config(
        fmt::format("--batch-shares {} needs --average gradients: replicas that drift apart count "
                    "alike, whatever they hold",
                    given));
  }
  for (const int share : l.shares) check_batch(l, m, share, "--batch-shares");
}

void check_compression(const Training& t, const Layout& l) {
  at_least(t.rounds, 1, "--neolithic");
  if (t.compression == Compression::none) {
    if (t.rounds > 1) refuse_config("--neolithic compresses what is left; it needs --compress");
    if (t.differences) refuse_config("--ef21 compresses differences; it needs --compress");
    return;
  }
  if (t.power_rank < 1) refuse_config(fmt::format("--rank {} is not at least 1", t.power_rank));
  if ((t.differences || t.rounds > 1) && t.compression == Compression::power) {
    refuse_config(fmt::format(
        "{} is about payloads; --compress power sends factors and has its own error feedback",
        t.differences ? "--ef21" : "--neolithic"));
  }
  if (l.zero > 0) {
    refuse_config(fmt::format(
        "--compress {} adds up whole gradients, which --zero {} never has; use --zero 0",
        kCompressionNames[static_cast<int>(t.compression)], l.zero));
  }
  if (t.levels < 1 || t.levels > 127)
    refuse_config(fmt::format("--levels {} is not in 1 … 127", t.levels));
  within(t.threshold, 0, kLargest, "--threshold");
  if (!(t.share > 0 && t.share <= 1))
    refuse_config(fmt::format("--share {} is not in (0, 1]", t.share));
}

void check_loss_scale(const Training& t, const Layout& l) {
  if (t.loss_scale == 0) return;
  int exponent = 0;
  if (!(t.loss_scale >= 1) || std::frexp(t.loss_scale, &exponent) != 0.5) {
    refuse_config(fmt::format(
        "--loss-scale {} is not a power of two of at least 1, which changes no bit", t.loss_scale));
  }
  if (t.compression != Compression::none || l.quantize_gradients) {
    refuse_config(
        "--loss-scale needs gradients that travel as they are: no --compress, no "
        "--quantize-gradients");
  }
}

void check_average(const Training& t, const Layout& l) {
  at_least(t.global_every, 0, "--global-every");
  if (t.average == Average::gradients) {
    if (t.global_every > 0)
      refuse_config("--global-every needs --average local, ring, grid or exponential");
    return;
  }
  const auto name = kAverageNames[static_cast<int>(t.average)];
  if (l.zero > 0 || l.ep > 1 || t.compression != Compression::none) {
    refuse_config(fmt::format(
        "--average {} lets whole replicas drift apart: it needs --zero 0 (not {}), --ep "
        "1 (not {}) and --compress none",
        name, l.zero, l.ep));
  }
  if (t.average == Average::local && t.global_every == 0) {
    refuse_config("--average local never averages anything; use --global-every with it");
  }
}

/// Of the layouts of `ranks` that the model allows, the one with the fewest changes, or of these
/// the nearest.
Layout nearest_layout(const Config& config, int ranks) {
  const Model& m = config.model;
  const Layout& l = config.layout;
  Layout best{.dp = ranks};
  auto least = std::pair(4, 0.0);
  for (int tp = 1; tp <= ranks; ++tp) {
    if (ranks % tp != 0 || m.heads % tp != 0 || m.f() % tp != 0 || m.vocab % tp != 0) continue;
    for (int pp = 1; pp <= std::min(ranks / tp, m.layers / l.virtual_stages); ++pp) {
      const int dp = ranks / tp / pp;
      if (ranks / tp % pp != 0 || dp % l.ep != 0) continue;
      const auto far = [](int a, int b) { return std::abs(std::log(double(a) / b)); };
      const std::pair away((tp != l.tp) + (pp != l.pp) + (dp != l.dp),
                           far(tp, l.tp) + far(pp, l.pp) + far(dp, l.dp));
      if (away < least) {
        least = away;
        best = {.dp = dp, .tp = tp, .pp = pp};
      }
    }
  }
  return best;
}

void check_world(const Config& config, int world_size) {
  const Layout& l = config.layout;
  if (l.world_size() == world_size) return;
  if (l.elastic && l.replica >= 0 && world_size <= l.dp) return;  // some are still away
  const Layout fits = nearest_layout(config, world_size);
  refuse_config(
      fmt::format("--dp {} x --tp {} x --pp {} is {} ranks, but {} were started; --dp {} --tp {} "
                  "--pp {} would fit",
                  l.dp, l.tp, l.pp, l.world_size(), world_size, fits.dp, fits.tp, fits.pp));
}

}  // namespace

std::string Model::signature() const {
  return fmt::format("V={} T={} L={} h={} a={} f={} tied={} E={} k={}", vocab, context, layers,
                     width, heads, f(), tied ? 1 : 0, experts, experts > 0 ? top_k : 0);
}

namespace {

void check_elastic(const Config& config) {
  const Layout& l = config.layout;
  const Training& t = config.training;
  if (!l.elastic) return;
  const bool whole = l.dp > 1 && l.tp == 1 && l.pp == 1 && l.ep == 1 && l.zero == 0;
  const bool sums = t.compression == Compression::none && t.average == Average::gradients &&
                    l.shares.empty() && l.ranks.empty();
  if (whole && sums && t.backend == Backend::cpu && t.loss_scale == 0) return;
  refuse_config(
      "--elastic needs replicas each of which has the whole model and sums of gradients: --dp "
      "above 1 with --tp, --pp and --ep 1, --zero 0, and none of --compress, --average, "
      "--batch-shares, --loss-scale and --backend");
}

}  // namespace

void check(const Config& config, int world_size) {
  const Model& m = config.model;
  const Layout& l = config.layout;
  check_model(m);
  between(l.dp, 1, kMostRanks, "--dp");
  between(l.tp, 1, kMostRanks, "--tp");
  between(l.pp, 1, kMostRanks, "--pp");
  const std::int64_t ranks = std::int64_t{1} * l.dp * l.tp * l.pp;
  between(ranks, 1, kMostRanks, "the number of ranks (--dp x --tp x --pp)");
  between(l.ep, 1, kMostRanks, "--ep");
  at_least(l.expert_chunks, 1, "--expert-chunks");
  between(static_cast<long>(std::min<std::size_t>(l.bucket_bytes, std::size_t{1} << 62)), 1,
          1L << 40, "--bucket-bytes");
  between(l.micro_batches, 1, 1'000'000, "--micro-batches");
  between(l.virtual_stages, 1, 10'000, "--virtual-stages");
  check_training(config.training);
  check_elastic(config);
  if (l.zero < 0 || l.zero > 3) refuse_config(fmt::format("--zero {} is not 0, 1, 2 or 3", l.zero));
  check_world(config, world_size);
  std::vector<int> mapping = l.ranks;
  std::ranges::sort(mapping);
  for (std::size_t i = 0; i < mapping.size(); ++i) {
    const bool whole = mapping.size() == static_cast<std::size_t>(world_size);
    if (whole && mapping[i] == static_cast<int>(i)) {
      continue;
    }
    refuse_config(fmt::format("the mapping {} does not give each of {} ranks one place",
                              fmt::join(l.ranks, ","), world_size));
  }
  must_divide(l.tp, "--tp", m.heads, "heads");
  must_divide(l.tp, "--tp", m.f(), "feed-forward columns");
  must_divide(l.tp, "--tp", m.vocab, "vocabulary entries");
  if (l.halves && l.tp == 1 && l.ep == 1) {
    refuse_config("--halves hides messages between slices or experts; use it with --tp or --ep");
  }
  check_shares(l, m, config.training);
  if (l.ep > 1 && m.experts == 0) refuse_config(fmt::format("--ep {} needs --experts", l.ep));
  must_divide(l.ep, "--ep", l.dp, "replicas (--dp)");
  if (m.experts > 0) must_divide(l.ep, "--ep", m.experts, "experts");
  check_zero_plus_plus(l, m);
  check_pipeline(l, m);
  const Training& t = config.training;
  check_average(t, l);
  check_compression(t, l);
  check_loss_scale(t, l);
}

int Config::sequences() const { return sequences_before(layout.dp); }

int Config::sequences_before(int replica) const {
  if (layout.shares.empty()) return replica * training.batch;
  return std::accumulate(layout.shares.begin(), layout.shares.begin() + replica, 0);
}

double learning_rate(const Config& config, int step) {
  const Training& t = config.training;
  const int sequences = config.sequences() * config.layout.micro_batches;
  const double scale = t.base_batch > 0 ? static_cast<double>(sequences) / t.base_batch : 1.0;
  if (step < t.warmup_steps) return scale * t.learning_rate * (step + 1) / t.warmup_steps;
  const double past =
      static_cast<double>(step - t.warmup_steps) / std::max(1, t.steps - t.warmup_steps);
  const double share = 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, past)));
  return scale * (t.min_learning_rate + share * (t.learning_rate - t.min_learning_rate));
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = [] {
    const auto gpt = [](int vocab, int context, int layers, int width, int heads, bool tied) {
      return Model{.vocab = vocab,
                   .context = context,
                   .layers = layers,
                   .width = width,
                   .heads = heads,
                   .tied = tied};
    };
    const auto llama = [](int layers, int width, int heads) {
      return Model{.vocab = 32000,
                   .context = 2048,
                   .layers = layers,
                   .width = width,
                   .heads = heads,
                   .tied = false};
    };
    return std::vector<Preset>{
        {"tiny", "0.1 M; bytes; for trying things", gpt(256, 64, 2, 64, 4, true)},
        {"small", "0.9 M; bytes; learns English spelling in minutes",
         gpt(256, 256, 4, 128, 4, true)},
        {"19M", "GPT-NeoX 19M", gpt(50304, 2048, 6, 512, 8, false)},
        {"125M", "GPT-NeoX 125M", gpt(50304, 2048, 12, 768, 12, false)},
        {"1.3B", "GPT-NeoX 1.3B", gpt(50304, 2048, 24, 2048, 16, false)},
        {"13B", "GPT-NeoX 13B", gpt(50304, 2048, 40, 5120, 40, false)},
        {"gpt3-125M", "GPT-3 Small (Brown et al., 2020, table 2.1)",
         gpt(50304, 2048, 12, 768, 12, true)},
        {"gpt3-350M", "GPT-3 Medium", gpt(50304, 2048, 24, 1024, 16, true)},
        {"gpt3-760M", "GPT-3 Large", gpt(50304, 2048, 24, 1536, 16, true)},
        {"gpt3-1.3B", "GPT-3 XL", gpt(50304, 2048, 24, 2048, 16, true)},
        {"gpt3-2.7B", "GPT-3 2.7B", gpt(50304, 2048, 32, 2560, 32, true)},
        {"gpt3-6.7B", "GPT-3 6.7B", gpt(50304, 2048, 32, 4096, 32, true)},
        {"gpt3-13B", "GPT-3 13B (width 5120: the table's 5140 is not 40 heads of 128)",
         gpt(50304, 2048, 40, 5120, 40, true)},
        {"gpt3-175B", "GPT-3 175B", gpt(50304, 2048, 96, 12288, 96, true)},
        {"llama-7B", "LLaMA's widths and depths in GPT-2's form", llama(32, 4096, 32)},
        {"llama-13B", "LLaMA 13B", llama(40, 5120, 40)},
        {"llama-33B", "LLaMA 33B", llama(60, 6656, 52)},
        {"llama-65B", "LLaMA 65B", llama(80, 8192, 64)},
    };
  }();
  return list;
}

Model preset(std::string_view name) {
  std::string names;
  for (const Preset& p : presets()) {
    if (p.name == name) return p.model;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", p.name);
  }
  refuse_config(fmt::format("there is no preset '{}'; there are {}", name, names));
}

std::string_view name_of(Pipeline p) { return kPipelineNames[static_cast<int>(p)]; }
std::string_view name_of(Recompute r) { return kRecomputeNames[static_cast<int>(r)]; }
std::string_view name_of(Compression c) { return kCompressionNames[static_cast<int>(c)]; }
std::string_view name_of(Average a) { return kAverageNames[static_cast<int>(a)]; }
Pipeline pipeline_of(std::string_view name) {
  return by_name<Pipeline>(kPipelineNames, name, "--schedule");
}
Recompute recompute_of(std::string_view name) {
  return by_name<Recompute>(kRecomputeNames, name, "--recompute");
}

Average average_of(std::string_view name) {
  return by_name<Average>(kAverageNames, name, "--average");
}

Backend backend_of(std::string_view name) {
  return by_name<Backend>(kBackendNames, name, "--backend");
}

Compression compression_of(std::string_view name) {
  return by_name<Compression>(kCompressionNames, name, "--compress");
}

}  // namespace trainer
