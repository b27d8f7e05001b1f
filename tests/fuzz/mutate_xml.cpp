#include <pugixml.hpp>
#include <sstream>
#include <vector>

#include "tests/fuzz/mutate.hpp"

namespace chorus::fuzz {
namespace {

constexpr std::size_t kMostChanges = 4;

class XmlMutator {
 public:
  XmlMutator(pugi::xml_document& document, Random& random) : document_(document), random_(random) {}

  void change() {
    collect();
    if (elements_.size() < 2) return;
    pugi::xml_node one = inner_element();
    pugi::xml_node other = elements_[below(random_, elements_.size())];
    switch (below(random_, 12)) {
      case 0:  // the change that brings a GPU into a bridge
      case 1:
        move_into(one, other);
        return;
      case 2:
        if (!contains(one, other)) (void)other.append_copy(one);
        return;
      case 3:
        (void)one.parent().insert_copy_after(one, one);
        return;
      case 4:
        (void)one.parent().remove_child(one);
        return;
      case 5:
        wrap(one, other);
        return;
      case 6:
        unwrap(one);
        return;
      case 7:
        one.set_name(std::string(other.name()).c_str());
        return;
      default:
        change_attribute(one, other);
    }
  }

 private:
  void collect() {
    elements_.clear();
    collect(document_.document_element());
  }
  void collect(pugi::xml_node node) {
    elements_.push_back(node);
    for (const pugi::xml_node child : node.children()) {
      if (child.type() == pugi::node_element) collect(child);
    }
  }

  /// Any element but the outermost.
  pugi::xml_node inner_element() { return elements_[1 + below(random_, elements_.size() - 1)]; }

  static bool contains(pugi::xml_node outer, pugi::xml_node inner) {
    for (; inner; inner = inner.parent()) {
      if (inner == outer) return true;
    }
    return false;
  }

  void move_into(pugi::xml_node one, pugi::xml_node other) {
    if (contains(one, other)) return;
    if (below(random_, 2) == 0) {
      (void)other.append_move(one);
    } else {
      (void)other.prepend_move(one);
    }
  }

  /// Puts a copy of `like`, without its children, around `one`.
  void wrap(pugi::xml_node one, pugi::xml_node like) {
    pugi::xml_node around = one.parent().insert_child_before(like.name(), one);
    for (const pugi::xml_attribute attribute : like.attributes()) around.append_copy(attribute);
    (void)around.append_move(one);
  }

  static void unwrap(pugi::xml_node one) {
    pugi::xml_node parent = one.parent();
    while (const pugi::xml_node child = one.first_child()) {
      if (!parent.insert_move_before(child, one)) return;
    }
    (void)parent.remove_child(one);
  }

  pugi::xml_attribute attribute_of(pugi::xml_node node) {
    std::vector<pugi::xml_attribute> all;
    for (const pugi::xml_attribute attribute : node.attributes()) all.push_back(attribute);
    return all.empty() ? pugi::xml_attribute() : all[below(random_, all.size())];
  }

  void change_attribute(pugi::xml_node one, pugi::xml_node other) {
    pugi::xml_attribute attribute = attribute_of(one);
    const std::size_t action = below(random_, 8);
    if (action == 0) {
      if (const pugi::xml_attribute more = attribute_of(other)) one.append_copy(more);
      return;
    }
    if (!attribute) return change_text(one);
    if (action == 1) {
      one.remove_attribute(attribute);
      return;
    }
    const pugi::xml_attribute same = other.attribute(attribute.name());
    if (action <= 3 && same) {
      attribute.set_value(std::string(same.value()).c_str());
      return;
    }
    attribute.set_value(perturbed_word(attribute.value(), random_).c_str());
  }

  void change_text(pugi::xml_node node) {
    if (pugi::xml_text text = node.text()) text.set(mutated_text(text.get(), random_).c_str());
  }

  pugi::xml_document& document_;
  Random& random_;
  std::vector<pugi::xml_node> elements_;
};

}  // namespace

std::string mutated_xml(const std::string& text, Random& random) {
  pugi::xml_document document;
  constexpr unsigned kAll = pugi::parse_default | pugi::parse_declaration | pugi::parse_doctype;
  if (!document.load_buffer(text.data(), text.size(), kAll, pugi::encoding_utf8)) return {};
  XmlMutator mutator(document, random);
  for (std::size_t changes = 1 + below(random, kMostChanges); changes > 0; --changes) {
    mutator.change();
  }
  std::ostringstream out;
  document.save(out, " ", pugi::format_indent | pugi::format_no_declaration, pugi::encoding_utf8);
  return out.str();
}

}  // namespace chorus::fuzz
