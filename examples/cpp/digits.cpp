// Recognizes handwritten digits on two threads, each with a session of its own.
//
//   of-opt compile examples/digits/digits.onnx -o digits.plan
//   c++ -std=c++17 examples/cpp/digits.cpp -I bindings/c/include -L target/release -lof_runtime -pthread -o digits
//   LD_LIBRARY_PATH=target/release ./digits digits.plan examples/digits/images.npy
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>

#include "of_runtime.hpp"

constexpr size_t PIXELS = 64, DIGITS = 10;

// The elements of a .npy file of version 1: the length of its header is in bytes 8 and 9.
std::vector<float> read_images(const char *path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (bytes.size() < 10) throw std::runtime_error(std::string(path) + " is no .npy file");
    size_t start = 10 + static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
    std::vector<float> pixels((bytes.size() - start) / sizeof(float));
    std::copy(bytes.begin() + start, bytes.end(), reinterpret_cast<char *>(pixels.data()));
    return pixels;
}

// The most probable digit of each image.
void recognize(const of_runtime::Plan &plan, const float *pixels, size_t images, int *digits) {
    of_runtime::Session session(plan);
    session.set_input(0, pixels, {static_cast<int64_t>(images), 1, 8, 8});
    session.run();
    const of_runtime::View result = session.output(0);
    const float *row = result.elements<float>();
    for (size_t i = 0; i < images; ++i, row += DIGITS)
        digits[i] = static_cast<int>(std::max_element(row, row + DIGITS) - row);
}

int main(int argc, char **argv) try {
    if (argc != 3) {
        std::cerr << "usage: " << argv[0] << " PLAN IMAGES.npy\n";
        return 2;
    }
    const of_runtime::Plan plan(argv[1]);
    for (const auto &port : plan.inputs()) std::cout << "input " << port.name << ": " << port.type_text << '\n';
    for (const auto &port : plan.outputs()) std::cout << "output " << port.name << ": " << port.type_text << '\n';

    const std::vector<float> pixels = read_images(argv[2]);
    const size_t images = pixels.size() / PIXELS, half = images / 2;
    std::vector<int> digits(images);
    std::thread other([&] { recognize(plan, pixels.data(), half, digits.data()); });
    recognize(plan, pixels.data() + half * PIXELS, images - half, digits.data() + half);
    other.join();
    std::cout << "digits:";
    for (int digit : digits) std::cout << ' ' << digit;
    std::cout << '\n';

    // A wrong shape is an exception.
    try {
        of_runtime::Session(plan).set_input(0, pixels.data(), {1, 64});
    } catch (const of_runtime::Error &error) {
        std::cout << "refused: " << error.what() << '\n';
    }
    return 0;
} catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
}
