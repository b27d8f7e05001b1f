#include "transports/link/rdma_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "chorus/error.hpp"

namespace chorus {

namespace {

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

bool RdmaSettings::name_some() const {
  const std::string_view list = trim(hca);
  return gid_index >= 0 || (!list.empty() && !list.starts_with('^'));
}

HcaList::HcaList(std::string_view text) {
  const std::string whole(text);
  const auto malformed = [&](std::string_view why) {
    throw InputError(fmt::format(
        "CHORUS_RDMA_HCA={}: {}; write it as mlx5_0:1,mlx5_1 or ^mlx5_2 or =mlx5_1", whole, why));
  };
  text = trim(text);
  if (text.starts_with('^')) {
    exclude_ = true;
    text = trim(text.substr(1));
  }
  if (text.starts_with('=')) {
    exact_ = true;
    text.remove_prefix(1);
  }
  text = trim(text);
  if (text.empty() && (exclude_ || exact_)) malformed("no adapter is named");
  while (!text.empty()) {
    std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    item = trim(item);
    Entry entry;
    if (const auto colon = item.find(':'); colon != std::string_view::npos) {
      const std::string_view digits = trim(item.substr(colon + 1));
      int port = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
      if (error != std::errc{} || end != digits.data() + digits.size() || port < 1 || port > 255) {
        malformed(fmt::format("'{}' is no port", digits));
      }
      entry.port = port;
      item = trim(item.substr(0, colon));
    }
    if (item.empty()) malformed("an adapter has no name");
    entry.name = item;
    entries_.push_back(std::move(entry));
  }
}

bool HcaList::admits(std::string_view device, int port) const {
  if (entries_.empty()) return true;
  const bool named = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    const bool same = exact_ ? device == entry.name : device.starts_with(entry.name);
    return same && (!entry.port || *entry.port == port);
  });
  return named != exclude_;
}

}  // namespace chorus
