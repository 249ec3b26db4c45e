// Makes malformed inputs from well-formed ones: it flips bits, removes, repeats and splices parts,
// and changes lengths.
//
// Equal seeds give equal inputs.
//
// Thread-compatible. Owns its copy of the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace cadre::fuzz {

class Mutator {
 public:
  // Inputs are truncated to `max_bytes`. An empty corpus is treated like one empty input.
  Mutator(std::vector<std::string> corpus, uint64_t seed, size_t max_bytes);

  // The next input: an input of the corpus, or the previous result, with one to eight changes.
  const std::string& Next();

 private:
  size_t Below(size_t bound);
  void Change(std::string& input);
  void FlipBits(std::string& input);
  void SetByte(std::string& input);
  void Truncate(std::string& input);
  void RemovePart(std::string& input);
  void RepeatPart(std::string& input);
  void InsertBytes(std::string& input);
  void Splice(std::string& input);
  void CorruptBinaryInteger(std::string& input);
  void CorruptDecimalDigits(std::string& input);

  const std::vector<std::string> corpus_;
  const size_t max_bytes_;
  std::mt19937_64 random_;
  std::string input_;
};

}  // namespace cadre::fuzz
