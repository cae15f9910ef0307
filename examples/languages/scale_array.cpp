// Multiplies every element of an array by a number, in place: scale_array FILE.npy NUMBER
#include "npy_map.h"

namespace {

// A view of the mapped elements by row and column, whichever way they are stored.
class Matrix {
public:
    explicit Matrix(const char *path) : map(npy_map(path)) {}
    ~Matrix() { npy_unmap(&map); }
    Matrix(const Matrix &) = delete;
    Matrix &operator=(const Matrix &) = delete;

    size_t rows() const { return map.rows; }
    size_t columns() const { return map.columns; }
    double &operator()(size_t row, size_t column) {
        return map.data[row * map.row_stride + column * map.column_stride];
    }

private:
    struct npy_map map;
};

} // namespace

int main(int count, char **arguments) {
    if (count != 3)
        npy_fail("usage", "scale_array FILE.npy NUMBER");
    Matrix matrix(arguments[1]);
    const double number = atof(arguments[2]);
    for (size_t row = 0; row < matrix.rows(); row++)
        for (size_t column = 0; column < matrix.columns(); column++)
            matrix(row, column) *= number;
}
