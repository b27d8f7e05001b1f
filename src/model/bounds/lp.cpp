#include "model/bounds/lp.hpp"

#include <Clp_C_Interface.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include "chorus/error.hpp"

namespace chorus {
namespace {

constexpr const char* kLibrary = "libClp.so.1";

/// The few functions used, found by name. With Clp comes OpenBLAS, which starts a thread for each
/// core when it is loaded: of the 18 ms of a command that needs no limits it took 14, and where
/// there was no memory for the threads (ulimit -v) the command hung at its end.
struct Api {
  decltype(&Clp_newModel) new_model;
  decltype(&Clp_deleteModel) delete_model;
  decltype(&ClpSolve_new) new_options;
  decltype(&ClpSolve_delete) delete_options;
  decltype(&ClpSolve_setDoDoubleton) set_do_doubleton;
  decltype(&Clp_setLogLevel) set_log_level;
  decltype(&Clp_setOptimizationDirection) set_direction;
  decltype(&Clp_addColumns) add_columns;
  decltype(&Clp_addRows) add_rows;
  decltype(&Clp_initialSolveWithOptions) solve;
  decltype(&Clp_dual) dual;
  decltype(&Clp_isProvenOptimal) is_optimal;
  decltype(&Clp_primalColumnSolution) column_solution;
  decltype(&Clp_dualRowSolution) row_prices;

  static Api open();
};

/// Never closed. The products of a linear program are too small for threads.
void* open_library() {
  constexpr const char* kThreads = "OPENBLAS_NUM_THREADS";
  const bool told = std::getenv(kThreads) != nullptr;
  if (!told) ::setenv(kThreads, "1", 0);
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!told) ::unsetenv(kThreads);
  return library;
}

Api Api::open() {
  void* const library = open_library();
  if (library == nullptr) {
    throw Error(
        fmt::format("limits are found by {}, which cannot be opened ({}): install "
                    "coinor-libclp1",
                    kLibrary, ::dlerror()));
  }
  const auto find = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) throw Error(fmt::format("{} has no {}", kLibrary, name));
  };
  Api api{};
  find(api.new_model, "Clp_newModel");
  find(api.delete_model, "Clp_deleteModel");
  find(api.new_options, "ClpSolve_new");
  find(api.delete_options, "ClpSolve_delete");
  find(api.set_do_doubleton, "ClpSolve_setDoDoubleton");
  find(api.set_log_level, "Clp_setLogLevel");
  find(api.set_direction, "Clp_setOptimizationDirection");
  find(api.add_columns, "Clp_addColumns");
  find(api.add_rows, "Clp_addRows");
  find(api.solve, "Clp_initialSolveWithOptions");
  find(api.dual, "Clp_dual");
  find(api.is_optimal, "Clp_isProvenOptimal");
  find(api.column_solution, "Clp_primalColumnSolution");
  find(api.row_prices, "Clp_dualRowSolution");
  return api;
}

const Api& clp() {
  static const Api api = Api::open();
  return api;
}

}  // namespace

struct LinearProgram::Impl {
  Impl() : model(clp().new_model()) {}
  ~Impl() { clp().delete_model(model); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Clp_Simplex* model;
  std::vector<double> lower, upper, objective;  // of variables
  // Rows not yet given to the model, one after the other.
  std::vector<double> row_lower, row_upper, coefficients;
  std::vector<CoinBigIndex> starts{0};
  std::vector<int> variables;
  int num_rows = 0;
  bool solved_before = false;
};

LinearProgram::LinearProgram() : impl_(std::make_unique<Impl>()) {
  clp().set_log_level(impl_->model, 0);
  clp().set_direction(impl_->model, -1);
}

LinearProgram::~LinearProgram() = default;

int LinearProgram::add_variable(double lower, double upper, double objective) {
  impl_->lower.push_back(lower);
  impl_->upper.push_back(upper);
  impl_->objective.push_back(objective);
  return static_cast<int>(impl_->lower.size()) - 1;
}

int LinearProgram::add_row(double lower, double upper, std::span<const Term> terms) {
  for (const Term& term : terms) {
    impl_->variables.push_back(term.variable);
    impl_->coefficients.push_back(term.coefficient);
  }
  impl_->starts.push_back(static_cast<CoinBigIndex>(impl_->variables.size()));
  impl_->row_lower.push_back(lower);
  impl_->row_upper.push_back(upper);
  return impl_->num_rows++;
}

bool LinearProgram::maximize() {
  Impl& now = *impl_;
  if (!now.solved_before) {
    clp().add_columns(now.model, static_cast<int>(now.lower.size()), now.lower.data(),
                      now.upper.data(), now.objective.data(), nullptr, nullptr, nullptr);
  }
  clp().add_rows(now.model, static_cast<int>(now.row_lower.size()), now.row_lower.data(),
                 now.row_upper.data(), now.starts.data(), now.variables.data(),
                 now.coefficients.data());
  now.row_lower.clear();
  now.row_upper.clear();
  now.starts.assign(1, 0);
  now.variables.clear();
  now.coefficients.clear();
  if (now.solved_before) {
    clp().dual(now.model, 0);
  } else {
    // Presolve saves up to 40 times the time (fat-tree:16x8,over=2, all_to_all), but its step for
    // rows of two variables leaks (Clp 1.17) and saves nothing here.
    Clp_Solve* const options = clp().new_options();
    clp().set_do_doubleton(options, 0);
    clp().solve(now.model, options);
    clp().delete_options(options);
  }
  now.solved_before = true;
  return clp().is_optimal(now.model) != 0;
}

double LinearProgram::value(int variable) const {
  return clp().column_solution(impl_->model)[variable];
}

double LinearProgram::price(int row) const { return std::abs(clp().row_prices(impl_->model)[row]); }

}  // namespace chorus
