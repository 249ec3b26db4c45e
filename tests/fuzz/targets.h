// The fuzz targets, by name: each calls a reader of untrusted bytes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace cadre::fuzz {

// A target must return, without leaks, for any input; it ends the process only if the reader has a
// bug.
using Target = void (*)(std::span<const uint8_t> input);

const std::map<std::string, Target>& Targets();

// In the file of this name with _target.cc.
void AnswerTarget(std::span<const uint8_t> input);
void Assignment(std::span<const uint8_t> input);
void Onnx(std::span<const uint8_t> input);
void Member(std::span<const uint8_t> input);
void Order(std::span<const uint8_t> input);

}  // namespace cadre::fuzz
