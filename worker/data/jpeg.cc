// libjpeg is a C library with two properties that matter here. It reports errors through a callback
// that must not return, so each group of calls runs under setjmp (Guarded), and only in frames
// without destructors. And it decodes damaged files as far as possible, with warnings; here a
// warning is an error, unless the image is complete, because a half-gray image would train
// silently.
//
// If a part of an image is decoded, the rows above the part are parsed but not transformed,
// and those below it are not read at all; beside it only whole blocks are left out, by
// libjpeg-turbo's jpeg_crop_scanline. Images with a sampling factor above 2 are decoded from the
// first row on, whole. Chroma that is stored at half the resolution is interpolated
// between neighbors, which are not right at the borders of what is decoded; a margin keeps them out
// of the part, so that its pixels have the same values as in the whole image.
//
// Bounds for hostile files: memory by max_memory_to_use and the limit of pixels; time by the number
// of scans, and by comparing the claimed size with the length of the file.
#include "worker/data/jpeg.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdio>
// jpeglib.h must follow <cstdio>.
#include <jerror.h>
#include <jpeglib.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file_format.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// Limit of libjpeg's own buffers: the coefficients of the largest progressive image that is
// accepted take 6 bytes per pixel.
constexpr long kMaxLibraryBytes = 6 * kMaxJpegPixels + (long{16} << 20);

// Every scan of a progressive image may cover all of it, so a short file could request unbounded
// work. Encoders write about ten scans.
constexpr int kMaxScans = 100;

// Huffman coding needs at least one bit for each block of 8 x 8 elements.
constexpr int64_t kMaxPixelsPerByte = 8 * 64;

// Warnings of libjpeg after which the image is nevertheless complete.
bool IsHarmless(int message) {
  switch (message) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
      return true;
    default:
      return false;
  }
}

// Pixels that are decoded on each side of a part: two that have values, and those that
// interpolation reads, at the scale of the output.
constexpr double kMargin = 8;

// The largest sampling factor of images of which parts are left out. With 4 x 2 (4:1:0) or 2 x 4, a
// scale of 2/8 or 4/8 makes the library scale color by another factor than brightness in one of the
// directions, and jpeg_crop_scanline then takes wrong columns of the color.
constexpr int kMaxPartialSampling = 2;

// The pixels of an interval, and of the margin around it, inside `all`. Requires: the interval is
// not empty and lies inside `all`.
Interval Around(double begin, double size, const Interval& all) {
  return {std::max(all.begin, static_cast<int64_t>(std::floor(begin - kMargin))),
          std::min(all.end, static_cast<int64_t>(std::ceil(begin + size + kMargin)))};
}

}  // namespace

struct JpegReader::State {
  State();
  ~State() { jpeg_destroy_decompress(&info); }
  // Makes `info`.
  void Create();

  // Calls `body`, which must only call libjpeg. Returns false if one of the calls failed; `message`
  // then describes the error. No frame between here and the failing call has a destructor, so that
  // longjmp is defined behavior.
  template <typename Body>
  bool Guarded(const Body& body) {
    if (setjmp(jump) != 0) return false;
    body();
    return true;
  }

  absl::Status Failed(absl::string_view note = "") {
    jpeg_abort_decompress(&info);
    return absl::DataLossError(absl::StrCat("JPEG: ", message.data(), note));
  }

  [[noreturn]] void Jump() {
    errors.format_message(reinterpret_cast<j_common_ptr>(&info), message.data());
    std::longjmp(jump, 1);
  }

  static State& Of(j_common_ptr info) { return *static_cast<State*>(info->client_data); }

  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::array<char, JMSG_LENGTH_MAX> message{};
  std::jmp_buf jump;
};

JpegReader::State::State() {
  info.err = jpeg_std_error(&errors);
  errors.error_exit = [](j_common_ptr cinfo) { Of(cinfo).Jump(); };
  errors.emit_message = [](j_common_ptr cinfo, int level) {
    if (level < 0 && !IsHarmless(cinfo->err->msg_code)) Of(cinfo).Jump();
  };
  errors.output_message = [](j_common_ptr) {};
  progress.progress_monitor = [](j_common_ptr cinfo) {
    State& state = Of(cinfo);
    if (state.info.input_scan_number <= kMaxScans) return;
    state.errors.msg_code = JERR_BAD_PROGRESSION;
    state.Jump();
  };
  Create();
}

void JpegReader::State::Create() {
  info.client_data = this;
  const bool made = Guarded([this] {
    jpeg_create_decompress(&info);
    info.progress = &progress;
    info.mem->max_memory_to_use = kMaxLibraryBytes;
  });
  CHECK(made) << "cannot initialize libjpeg: " << message.data();
}

JpegReader::JpegReader() : state_(std::make_unique<State>()) {}
JpegReader::~JpegReader() = default;

absl::StatusOr<ImageSize> JpegReader::Open(std::span<const std::byte> file) {
  jpeg_decompress_struct& info = state_->info;
  // libjpeg keeps the tables of an image, and a file without tables would be decoded with them.
  jpeg_destroy_decompress(&info);
  state_->Create();
  const bool read = state_->Guarded([&info, file] {
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&info, TRUE);
  });
  if (!read) {
    const absl::string_view first(reinterpret_cast<const char*>(file.data()), file.size());
    return state_->Failed(FormatNote(first.substr(0, kFormatBytes), kJpegFormat));
  }
  const ImageSize size{.height = info.image_height, .width = info.image_width};
  if (info.num_components != 1 && info.num_components != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("JPEG: ", info.num_components,
                     " color components; only 1 (gray) and 3 (color) are supported"));
  }
  if (info.arith_code != 0) {
    return absl::InvalidArgumentError("JPEG: arithmetic coding is not supported");
  }
  const int64_t pixels = size.height * size.width;
  if (pixels > kMaxJpegPixels) {
    return absl::InvalidArgumentError(absl::StrCat("JPEG: ", size.height, " x ", size.width,
                                                   " pixels; at most ", kMaxJpegPixels,
                                                   " are supported"));
  }
  if (pixels / kMaxPixelsPerByte > std::ssize(file)) {
    return absl::DataLossError(absl::StrCat("JPEG: ", file.size(), " bytes cannot contain ",
                                            size.height, " x ", size.width, " pixels"));
  }
  return size;
}

absl::Status JpegReader::Decode(int channels, int eighths, JpegImage& image,
                                const ImageRect* part) {
  CHECK(channels == 1 || channels == 3);
  jpeg_decompress_struct& info = state_->info;
  const bool started = state_->Guarded([&info, channels, eighths] {
    info.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    info.scale_num = eighths;
    info.scale_denom = 8;
    // Integer arithmetic gives the same bits on every machine.
    info.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&info);
  });
  if (!started) return state_->Failed();
  image.size = {.height = info.output_height, .width = info.output_width};
  image.channels = channels;
  const int64_t row_bytes = image.size.width * channels;
  image.pixels.resize(row_bytes * image.size.height);
  Interval rows = {0, image.size.height};
  Interval columns = {0, image.size.width};
  if (part != nullptr) {
    const double scale = eighths / 8.0;
    rows = Around(part->top * scale, part->height * scale, rows);
    columns = Around(part->left * scale, part->width * scale, columns);
  }
  unsigned char* const pixels = image.pixels.data();
  const bool read = state_->Guarded([&info, pixels, row_bytes, rows, columns, channels] {
    const bool partial = info.max_h_samp_factor <= kMaxPartialSampling &&
                         info.max_v_samp_factor <= kMaxPartialSampling;
    JDIMENSION left = 0;
    if (partial && columns.size() < int64_t{info.output_width}) {
      left = columns.begin;
      JDIMENSION width = columns.size();
      jpeg_crop_scanline(&info, &left, &width);
    }
    if (partial && rows.begin > 0) jpeg_skip_scanlines(&info, rows.begin);
    while (info.output_scanline < rows.end) {
      unsigned char* row = pixels + info.output_scanline * row_bytes + int64_t{left} * channels;
      jpeg_read_scanlines(&info, &row, 1);
    }
    if (info.output_scanline == info.output_height) {
      jpeg_finish_decompress(&info);
    } else {
      jpeg_abort_decompress(&info);
    }
  });
  return read ? absl::OkStatus() : state_->Failed();
}

}  // namespace cadre
