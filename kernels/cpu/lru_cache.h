// A bounded map that drops the least recently used entry.
//
// Owns its values. Thread-compatible. A look-up searches the entries from the most recently used
// on: with tens of entries, of which few are in use at a time, this is faster than hashing.
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <utility>

namespace cadre {

template <typename Key, typename Value>
class LruCache {
 public:
  // Requires: capacity >= 1.
  explicit LruCache(size_t capacity) : capacity_(capacity) {}

  // The value of `key`, made by make() if it is missing. Valid until the next call.
  template <typename Make>
  Value& GetOrMake(const Key& key, Make make) {
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->first == key) {
        entries_.splice(entries_.begin(), entries_, it);
        return it->second;
      }
    }
    if (entries_.size() == capacity_) entries_.pop_back();
    entries_.emplace_front(key, make());
    return entries_.front().second;
  }

  size_t size() const { return entries_.size(); }

 private:
  const size_t capacity_;
  std::list<std::pair<Key, Value>> entries_;
};

}  // namespace cadre
