// Every operation of the cuda backend, its kernels run by the host, beside the cpu backend's: one
// thread per row, and teams of threads as on a GPU.
#include "ops/cuda_ops.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <functional>
#include <numeric>
#include <thread>

#include "chorus/compress.hpp"
#include "model/random.hpp"

namespace trainer::testing {
namespace {

/// What the threads of a team share.
struct Meeting {
  explicit Meeting(std::size_t size) : barrier(static_cast<std::ptrdiff_t>(size)), values(size) {}
  std::barrier<> barrier;
  std::vector<double> values;
};

/// One of several threads that compute a row together, each with its columns.
class TeamThread {
 public:
  TeamThread(Meeting& meeting, std::size_t rank) : meeting_(meeting), rank_(rank) {}
  [[nodiscard]] std::size_t rank() const { return rank_; }
  [[nodiscard]] std::size_t size() const { return meeting_.values.size(); }
  template <class T>
  T sum(T x) {
    return over_all(x, T(0), [](T a, T b) { return a + b; });
  }
  template <class T>
  T largest(T x) {
    return over_all(x, T(-INFINITY), [](T a, T b) { return std::max(a, b); });
  }

 private:
  template <class T, class Fold>
  T over_all(T x, T all, Fold fold) {
    meeting_.values[rank_] = static_cast<double>(x);
    meeting_.barrier.arrive_and_wait();
    for (const double v : meeting_.values) all = fold(all, static_cast<T>(v));
    meeting_.barrier.arrive_and_wait();
    return all;
  }

  Meeting& meeting_;
  std::size_t rank_;
};

/// The emulated GPU, with kernels run by several threads: elements spread over them, rows by teams.
class ThreadedGpu final : public Gpu {
 public:
  [[nodiscard]] std::string name() const override { return host_->name(); }
  [[nodiscard]] bool emulated() const override { return true; }
  [[nodiscard]] void* allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  void release(void* memory) noexcept override { host_->release(memory); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    host_->copy(to, from, bytes);
  }
  void zero(void* memory, std::size_t bytes) override { host_->zero(memory, bytes); }
  void gemm(const Gemm& how) override { host_->gemm(how); }
  void finish() override {}
  [[nodiscard]] std::unique_ptr<Lane> make_lane() override { return host_->make_lane(); }
  std::uint32_t keep_time(std::size_t most) override { return host_->keep_time(most); }
  [[nodiscard]] Stamp stamp() override { return host_->stamp(); }
  [[nodiscard]] double seconds(Stamp stamp) override { return host_->seconds(stamp); }
  void launch(const Kernel<float>& kernel, std::size_t count) override { run(kernel, count); }
  void launch(const Kernel<double>& kernel, std::size_t count) override { run(kernel, count); }

 private:
  static constexpr std::size_t kTeam = 3;

  template <class R>
  static void run(const Kernel<R>& kernel, std::size_t count) {
    Meeting meeting(kTeam);
    const auto work = [&](std::size_t rank) {
      std::visit(
          [&]<class K>(const K& body) {
            if constexpr (kernel::kByTeam<K>) {
              TeamThread team(meeting, rank);
              for (std::size_t i = 0; i < count; ++i) body(team, i);
            } else {
              // The last ones first: no element may count on those before it.
              for (std::size_t i = count; i-- > 0;) {
                if (i % kTeam == rank) body(i);
              }
            }
          },
          kernel);
    };
    std::vector<std::thread> others;
    for (std::size_t rank = 1; rank < kTeam; ++rank) others.emplace_back(work, rank);
    work(0);
    for (std::thread& t : others) t.join();
  }

  std::unique_ptr<Gpu> host_ = emulate_gpu();
};

enum class How { alone, teams };

template <class R>
std::vector<R> numbers(std::size_t count, std::uint64_t stream) {
  std::vector<R> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = R(random_normal(3, stream, i));
  return values;
}

/// Inputs that `body` may change, the same for both backends; everything it changed is compared.
template <class R>
class Sides {
 public:
  Sides(How how, double tolerance, Precision precision = Precision::full)
      : gpu_(how == How::teams ? std::make_unique<ThreadedGpu>() : emulate_gpu()),
        cpu_(make_cpu_ops<R>(1024, precision)),
        cuda_(make_cuda_ops<R>(gpu_.get(), precision)),
        tolerance_(tolerance),
        teams_(how == How::teams) {}

  /// Threads that wait for each other some thousand times take long where cores are few.
  [[nodiscard]] int size(int alone, int in_teams) const { return teams_ ? in_teams : alone; }

  using Values = std::vector<std::vector<R>>;
  void expect_alike(const char* what, const Values& inputs,
                    const std::function<void(Ops<R>&, Values&)>& body) {
    Values left = inputs;
    Values right = inputs;
    body(*cpu_, left);
    body(*cuda_, right);
    bool moved = false;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      double gap = 0;
      double norm = 0;
      for (std::size_t j = 0; j < inputs[i].size(); ++j) {
        gap += std::pow(double(left[i][j]) - double(right[i][j]), 2);
        norm += std::pow(double(left[i][j]), 2);
      }
      moved = moved || left[i] != inputs[i];
      EXPECT_LE(std::sqrt(gap), tolerance_ * std::sqrt(norm)) << what << ", array " << i;
    }
    EXPECT_TRUE(moved) << what << " changed nothing";
  }

 private:
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<Ops<R>> cpu_, cuda_;
  double tolerance_;
  bool teams_;
};

template <class R>
void rows_and_elements(Sides<R>& s) {
  constexpr int h = 20;
  const int n = s.size(150, 4);  // more rows than parts of column sums
  const auto x = numbers<R>(n * h, 1), y = numbers<R>(n * h, 2), v = numbers<R>(h, 3);
  s.expect_alike("add", {x, y}, [&](auto& o, auto& a) { o.add(a[0].data(), a[1].data(), n * h); });
  s.expect_alike("copy", {x, y},
                 [&](auto& o, auto& a) { o.copy(a[0].data(), a[1].data(), n * h); });
  s.expect_alike("mix", {x, y},
                 [&](auto& o, auto& a) { o.mix(a[0].data(), 0.25, a[1].data(), 0.75, n * h); });
  s.expect_alike("zero", {x}, [&](auto& o, auto& a) { o.zero(a[0].data(), n); });
  s.expect_alike("add_bias", {x, v},
                 [&](auto& o, auto& a) { o.add_bias(a[0].data(), a[1].data(), n, h); });
  s.expect_alike("add_column_sums", {v, x},
                 [&](auto& o, auto& a) { o.add_column_sums(a[0].data(), a[1].data(), n, h); });
  s.expect_alike("gelu", {x, y}, [&](auto& o, auto& a) {
    for (R& e : a[1]) e *= R(10);
    o.gelu(a[0].data(), a[1].data(), n * h);
  });
  s.expect_alike("gelu_backward", {x, y},
                 [&](auto& o, auto& a) { o.gelu_backward(a[0].data(), a[1].data(), n * h); });
  const std::vector<R> none(n);
  s.expect_alike("layer_norm", {x, y, none, none, v, v}, [&](auto& o, auto& a) {
    o.layer_norm(a[0].data(), a[2].data(), a[3].data(), a[1].data(), a[4].data(), a[5].data(), n,
                 h);
  });
  const auto mean = numbers<R>(n, 4), scale = numbers<R>(n, 5);
  s.expect_alike("layer_norm_dx", {x, y, numbers<R>(n * h, 6), mean, scale, v},
                 [&](auto& o, auto& a) {
                   o.layer_norm_dx(a[0].data(), a[1].data(), a[2].data(), a[3].data(), a[4].data(),
                                   a[5].data(), n, h);
                 });
  s.expect_alike("layer_norm_dw", {v, v, x, y, mean, scale}, [&](auto& o, auto& a) {
    o.layer_norm_dw(a[0].data(), a[1].data(), a[2].data(), a[3].data(), a[4].data(), a[5].data(), n,
                    h);
  });
  s.expect_alike("softmax_rows", {x}, [&](auto& o, auto& a) { o.softmax_rows(a[0].data(), n, h); });
  s.expect_alike("add_squares", {x, {R(0)}}, [&](auto& o, auto& a) {
    double sum = 2;
    o.add_squares(&sum, a[0].data(), n * h);
    a[1][0] = R(o.value(&sum));
  });
  s.expect_alike("adamw", {x, y, numbers<R>(n * h, 7), numbers<R>(n * h, 8)},
                 [&](auto& o, auto& a) {
                   for (R& e : a[2]) e *= e;
                   o.adamw(a[0].data(), a[1].data(), a[2].data(), a[3].data(), n * h,
                           {0.01, 0.9, 0.95, 1e-8, 0.1, 0.5, 3});
                 });
}

template <class R>
void tokens_and_losses(Sides<R>& s) {
  constexpr int h = 12, rows = 16, first = 16, T = 3;
  const int n = s.size(40, 7);
  Both<std::int32_t> ids;
  std::vector<std::int32_t> tokens(n), order(n);
  for (int i = 0; i < n; ++i) tokens[i] = i * i % 48;  // two thirds of them elsewhere, some twice
  std::iota(order.rbegin(), order.rend(), 0);
  ids.host = ids.device = tokens.data();
  const auto x = numbers<R>(n * h, 1), table = numbers<R>(rows * h, 2);
  s.expect_alike("embed", {x, table}, [&](auto& o, auto& a) {
    o.embed(a[0].data(), tokens.data(), a[1].data(), first, rows, n, h);
  });
  s.expect_alike("embed_backward", {table, x}, [&](auto& o, auto& a) {
    o.embed_backward(a[0].data(), ids, a[1].data(), first, rows, n, h);
  });
  s.expect_alike("add_positions", {x, table},
                 [&](auto& o, auto& a) { o.add_positions(a[0].data(), a[1].data(), 3, T, n, h); });
  s.expect_alike("add_positions_backward", {table, x}, [&](auto& o, auto& a) {
    o.add_positions_backward(a[0].data(), a[1].data(), 3, T, n, h);
  });
  s.expect_alike("gather_rows", {numbers<R>(n * h, 9), x}, [&](auto& o, auto& a) {
    o.gather_rows(a[0].data(), a[1].data(), order.data(), n, h);
  });
  s.expect_alike("scatter_rows", {numbers<R>(n * h, 9), x}, [&](auto& o, auto& a) {
    o.scatter_rows(a[0].data(), a[1].data(), order.data(), n, h);
  });
  // The loss, as a rank computes it that has a third of the vocabulary.
  const std::vector<R> one(n), two(2 * n);
  s.expect_alike("the loss", {numbers<R>(n * rows, 3), one, two, {R(0)}}, [&](auto& o, auto& a) {
    double loss = 1;
    o.row_max(a[1].data(), a[0].data(), n, rows);
    o.exp_rows(a[0].data(), a[2].data(), a[1].data(), tokens.data(), first, n, rows);
    o.loss_rows(&loss, a[0].data(), a[2].data(), tokens.data(), first, R(0.25), n, rows);
    a[3][0] = R(o.value(&loss));
  });
}

template <class R>
void experts(Sides<R>& s, int k) {
  constexpr int h = 9, E = 5;
  const int n = s.size(30, 4);
  const std::size_t pairs = static_cast<std::size_t>(n * k);
  std::vector<std::int32_t> places(pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    places[i] = i % 7 == 3 ? -1 : static_cast<std::int32_t>((i * 11 + 5) % pairs);
  }
  if (pairs % 11 == 0) FAIL() << "places must differ";
  auto probabilities = numbers<R>(n * E, 1);
  make_cpu_ops<R>(1)->softmax_rows(probabilities.data(), n, E);
  const std::vector<double> lift = {0.1, 0.2, 0.0, 0.3, 0.5};
  const auto x = numbers<R>(n * h, 2), y = numbers<R>(pairs * h, 3), w = numbers<R>(pairs, 4);
  s.expect_alike("spread_pairs", {y, x}, [&](auto& o, auto& a) {
    o.spread_pairs(a[0].data(), a[1].data(), places.data(), n, k, h);
  });
  s.expect_alike("gather_pairs", {x, y, w}, [&](auto& o, auto& a) {
    o.gather_pairs(a[0].data(), a[1].data(), places.data(), a[2].data(), n, k, h);
    o.gather_pairs(a[0].data(), a[1].data(), places.data(), nullptr, n, k, h);
  });
  s.expect_alike("pair_slopes", {w, y, x, numbers<R>(pairs * h, 5), w}, [&](auto& o, auto& a) {
    o.pair_slopes(a[0].data(), a[1].data(), a[2].data(), a[3].data(), places.data(), a[4].data(), n,
                  k, h);
  });
  const std::vector<R> none(n * E);
  s.expect_alike("the gate", {none, probabilities, w, w, {R(0)}, std::vector<R>(pairs)},
                 [&](auto& o, auto& a) {
                   std::vector<std::int32_t> chosen(pairs);
                   o.top_k(chosen.data(), a[2].data(), a[1].data(), n, E, k);
                   double balance = 1;
                   o.gate_backward(a[0].data(), &balance, a[1].data(), chosen.data(), a[2].data(),
                                   a[3].data(), lift.data(), true, n, E, k);
                   a[4][0] = R(o.value(&balance));
                   for (std::size_t i = 0; i < pairs; ++i) a[5][i] = R(chosen[i]);
                 });
}

template <class R>
void products_and_attention(Sides<R>& s, int T) {
  constexpr int m = 11, n = 7, k = 13, wide = 20;
  for (const Op a : {Op::as_is, Op::transposed}) {
    for (const Op b : {Op::as_is, Op::transposed}) {
      for (const double beta : {0.0, 1.0}) {
        s.expect_alike(
            "gemm",
            {numbers<R>(m * wide, 1), numbers<R>(wide * wide, 2), numbers<R>(wide * wide, 3)},
            [&](auto& o, auto& v) {
              o.gemm(a, b, m, n, k, v[1].data(), wide, v[2].data(), wide, R(beta), v[0].data(),
                     wide);
            });
      }
    }
  }
  const int batch = 2, heads = 3, hd = 8;
  const auto rows = static_cast<std::size_t>(batch * T * heads * hd);
  const std::vector<R> lse(static_cast<std::size_t>(batch * heads * T));
  s.expect_alike("attention", {std::vector<R>(rows), lse, numbers<R>(3 * rows, 4)},
                 [&](auto& o, auto& v) {
                   o.attention(v[0].data(), v[1].data(), v[2].data(), batch, T, heads, hd);
                 });
  s.expect_alike("attention_backward",
                 {numbers<R>(3 * rows, 7), numbers<R>(rows, 5), std::vector<R>(rows), lse,
                  numbers<R>(3 * rows, 4)},
                 [&](auto& o, auto& v) {
                   o.attention(v[2].data(), v[3].data(), v[4].data(), batch, T, heads, hd);
                   o.attention_backward(v[0].data(), v[1].data(), v[2].data(), v[3].data(),
                                        v[4].data(), batch, T, heads, hd);
                 });
}

/// Several blocks of 512, the last one torn, at an address of no float.
void packed(Sides<float>& s) {
  const std::size_t n = static_cast<std::size_t>(s.size(5000, 700));
  s.expect_alike("pack, add_packed", {numbers<float>(n, 1), numbers<float>(n, 2)},
                 [&](auto& o, auto& a) {
                   std::vector<std::uint8_t> bytes(1 + chorus::compress::Nearest8().bytes(n));
                   o.pack(&bytes[1], a[1].data(), n);
                   o.add_packed(a[0].data(), &bytes[1], n);
                   o.zero(a[1].data(), 5);
                   o.pack(&bytes[1], a[1].data(), 5);
                   o.add_packed(a[1].data(), &bytes[1], 5);  // nothing of nothing
                 });
}

class CudaOps : public ::testing::TestWithParam<How> {};

TEST_P(CudaOps, EqualTheCpuBackendInDouble) {
  Sides<double> s(GetParam(), 1e-12);
  rows_and_elements(s);
  tokens_and_losses(s);
  experts(s, 1);
  experts(s, 2);
  products_and_attention(s, s.size(30, 4));
}

TEST_P(CudaOps, EqualTheCpuBackendInFloat) {
  Sides<float> s(GetParam(), 2e-6);
  rows_and_elements(s);
  packed(s);
  tokens_and_losses(s);
  experts(s, 1);
  experts(s, 2);
  products_and_attention(s, s.size(30, 4));
}

TEST(CudaAttention, EqualsTheCpuBackendsOverSeveralTilesOfQueries) {
  Sides<double> s(How::alone, 1e-12);
  products_and_attention(s, 600);
}

/// bfloat16's spacing is 1/128: weights of attention are rounded after the softmax in both.
TEST_P(CudaOps, RoundFactorsToBfloat16AsTheCpuBackendDoes) {
  Sides<float> s(GetParam(), 5e-3, Precision::bfloat16);
  products_and_attention(s, s.size(70, 4));
  const auto wild = {0.0F, -1.0F - 0x1p-8F, 1.0F + 0x1p-7F + 0x1p-8F, INFINITY, 1e-37F, 3.4e38F};
  for (const float x : wild) {
    const float back = kernel::expanded(kernel::rounded(x));
    Sides<float>::Values out(1, {0.0F});
    make_cpu_ops<float>(1, Precision::bfloat16)
        ->gemm(Op::as_is, Op::as_is, 1, 1, 1, &x, 1, std::vector<float>{1.0F}.data(), 1, 0.0F,
               out[0].data(), 1);
    EXPECT_EQ(back, out[0][0]);
  }
  EXPECT_TRUE(std::isnan(kernel::expanded(kernel::rounded(NAN))));
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaOps, ::testing::Values(How::alone, How::teams),
                         [](const auto& p) {
                           return p.param == How::alone ? "OneThread" : "TeamsOfThreads";
                         });

}  // namespace
}  // namespace trainer::testing
