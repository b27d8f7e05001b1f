// The words of train's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "config.hpp"

namespace trainer {

struct Arguments {
  Config config;
  std::string preset = "tiny";
  std::string schedule = "1f1b";
  std::string recompute = "none";
  std::string compress = "none";
  std::string average = "gradients";
  std::string backend = "cpu";
  bool no_error_feedback = false;
  bool dry_run = false;
  bool dry_run_json = false;
  bool break_even = false;
  std::string plan;  ///< topology
  int sequences = 0;
  std::vector<double> speeds;
  double gflops = 0;
  double memory_gb = 0;
  std::string mapping = "auto";
  bool list_presets = false;
  bool no_overlap = false;
  bool untied = false;
  bool deterministic = false;
  bool report = false;
  int evaluate_every = 0;
  int print_every = 10;
  std::string report_json;
  std::string trace;
  int trace_steps = 2;
  int compare_overlap = 0;
  int compare_plan = 0;
  std::string compare_json;
  std::string checkpoint;
  int checkpoint_every = 0;
  bool resume = false;
};

/// The command line, with every option bound to its place in `a`, whose model is the preset's
/// already.
[[nodiscard]] std::unique_ptr<CLI::App> make_app(Arguments& a);

}  // namespace trainer
