// Products of matrices are those of the definition, in every form that the trainer asks for, by
// whatever multiplies here; on the calling thread alone.
#include "ops/products.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "model/random.hpp"
#include "ops/onednn.hpp"

namespace trainer::testing {
namespace {

struct Shape {
  int m, n, k;
};

template <class T>
struct Matrix {
  Matrix(int rows, int cols, std::uint64_t stream) : ld(cols + 3) {
    x.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(ld));
    for (std::size_t i = 0; i < x.size(); ++i) {
      kernel::store(x[i], static_cast<float>(random_normal(1, stream, i)));
    }
  }
  [[nodiscard]] double at(int row, int col) const {
    const T& value = x[static_cast<std::size_t>(row) * static_cast<std::size_t>(ld) +
                       static_cast<std::size_t>(col)];
    if constexpr (std::is_same_v<T, Bfloat16>) {
      return kernel::expanded(value);
    } else {
      return value;
    }
  }
  int ld;
  std::vector<T> x;
};

/// All forms of C = alpha · op(A) · op(B) + beta · C for factors of T and sums of S, which round
/// by at most `epsilon`.
template <class T, class S>
void hold_to_definition(double epsilon) {
  Products products;
  for (const Shape& s : {Shape{1, 1, 1}, Shape{5, 7, 9}, Shape{64, 17, 64}, Shape{63, 128, 33},
                         Shape{1, 96, 300}, Shape{130, 1, 64}, Shape{32, 48, 1000}}) {
    for (int form = 0; form < 8; ++form) {
      const bool ta = (form & 1) != 0;
      const bool tb = (form & 2) != 0;
      const S alpha = (form & 4) != 0 ? S(0.125) : S(1);
      const S beta = (form & 4) != 0 ? S(1) : S(0);
      const Matrix<T> a(ta ? s.k : s.m, ta ? s.m : s.k, 1);
      const Matrix<T> b(tb ? s.n : s.k, tb ? s.k : s.n, 2);
      Matrix<S> c(s.m, s.n, 3);
      Matrix<S> before = c;
      if (beta == S(0)) std::fill(c.x.begin(), c.x.end(), std::numeric_limits<S>::quiet_NaN());
      products.multiply(ta ? Op::transposed : Op::as_is, tb ? Op::transposed : Op::as_is, s.m, s.n,
                        s.k, alpha, a.x.data(), a.ld, b.x.data(), b.ld, beta, c.x.data(), c.ld);
      for (int i = 0; i < s.m; ++i) {
        for (int j = 0; j < s.n; ++j) {
          double sum = 0;
          double size = 0;
          for (int l = 0; l < s.k; ++l) {
            const double term = (ta ? a.at(l, i) : a.at(i, l)) * (tb ? b.at(j, l) : b.at(l, j));
            sum += term;
            size += std::abs(term);
          }
          const double old = double(beta) * before.at(i, j);
          ASSERT_NEAR(c.at(i, j), double(alpha) * sum + old,
                      epsilon * s.k * (double(alpha) * size + std::abs(old)))
              << s.m << " x " << s.n << " x " << s.k << ", form " << form << ", row " << i
              << ", column " << j;
        }
      }
    }
  }
}

TEST(Products, OfFloatsAreThoseOfTheDefinition) { hold_to_definition<float, float>(0x1p-23); }
TEST(Products, OfDoublesAreThoseOfTheDefinition) { hold_to_definition<double, double>(0x1p-52); }
TEST(Products, OfBfloat16AddInFloat32) { hold_to_definition<Bfloat16, float>(0x1p-23); }

// Each factor is off by at most 2⁻⁹ of itself.
TEST(Products, OfBfloat16AreThoseOfFloatsToItsRounding) {
  const int n = 96;
  const Matrix<float> a(n, n, 1), b(n, n, 2);
  const Matrix<Bfloat16> coarse_a(n, n, 1), coarse_b(n, n, 2);
  Matrix<float> c(n, n, 3), coarse(n, n, 3);
  Products products;
  products.multiply(Op::as_is, Op::as_is, n, n, n, 1.0F, a.x.data(), a.ld, b.x.data(), b.ld, 0.0F,
                    c.x.data(), c.ld);
  products.multiply(Op::as_is, Op::as_is, n, n, n, 1.0F, coarse_a.x.data(), a.ld, coarse_b.x.data(),
                    b.ld, 0.0F, coarse.x.data(), c.ld);
  double furthest = 0;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      double size = 0;
      for (int l = 0; l < n; ++l) size += std::abs(a.at(i, l) * b.at(l, j));
      const double gap = std::abs(coarse.at(i, j) - c.at(i, j));
      EXPECT_LE(gap, (0x1p-8 + 0x1p-16) * size);
      furthest = std::max(furthest, gap / size);
    }
  }
  EXPECT_GT(furthest, 0x1p-14);  // float32's own products would come closer
}

TEST(Products, OfNothingLeaveWhatBetaSays) {
  Products products;
  const float none = 0;
  const Bfloat16 coarse_none = {0};
  for (const bool bfloat16 : {false, true}) {
    float c[4] = {1, 2, 3, 4};
    const auto multiply = [&](float beta) {
      if (bfloat16) {
        products.multiply(Op::as_is, Op::as_is, 2, 2, 0, 1, &coarse_none, 1, &coarse_none, 2, beta,
                          c, 2);
      } else {
        products.multiply(Op::as_is, Op::as_is, 2, 2, 0, 1, &none, 1, &none, 2, beta, c, 2);
      }
    };
    multiply(1);
    EXPECT_EQ(c[3], 4);
    multiply(0);
    EXPECT_EQ(c[3], 0);
  }
}

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(Products, StartNoThread) {
  const int n = 512;
  const std::vector<float> x(n * n, 1.0F);
  const std::vector<Bfloat16> coarse(n * n, kernel::rounded(1.0F));
  const auto multiply = [&] {
    std::vector<float> c(n * n);
    Products products;
    products.multiply(Op::as_is, Op::as_is, n, n, n, 1.0F, x.data(), n, x.data(), n, 0.0F, c.data(),
                      n);
    EXPECT_EQ(c.back(), n);
    products.multiply(Op::as_is, Op::as_is, n, n, n, 1.0F, coarse.data(), n, coarse.data(), n, 0.0F,
                      c.data(), n);
    EXPECT_EQ(c.back(), n);
  };
  const std::ptrdiff_t before = threads();
  multiply();
  EXPECT_EQ(threads(), before);
  std::ptrdiff_t within = 0;
  std::thread([&] {
    multiply();
    within = threads();
  }).join();
  EXPECT_EQ(within, before + 1);
}

// Not to lose the instructions unnoticed: products of bfloat16 would take several times as long.
TEST(Products, OfBfloat16AreTheProcessorsWhereItHasThem) {
  std::ifstream file("/proc/cpuinfo");
  bool has = false;
  for (std::string word; file >> word;) has = has || word == "avx512_bf16";
  const bool limited = std::getenv("DNNL_MAX_CPU_ISA") != nullptr;
  const std::string by = products_by(Precision::bfloat16);
  std::printf("float32: %s; bfloat16: %s\n", products_by(Precision::full).c_str(), by.c_str());
  if (onednn::name() == "none" || !has) {
    EXPECT_TRUE(by.starts_with("emulation in float32 by ")) << by;
    EXPECT_FALSE(onednn::multiplies(Precision::bfloat16));
  } else if (!limited) {
    EXPECT_TRUE(by.starts_with("oneDNN ")) << by;
  }
}

}  // namespace
}  // namespace trainer::testing
