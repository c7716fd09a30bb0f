"""PDF files of objects that tests write themselves."""


def assembled(objects, trailer=""):
    """A file of objects, which are bytes and numbered from 1; the first is the catalog."""
    written, table = b"%PDF-1.5\n", ""
    for number, body in enumerate(objects, 1):
        table += f"{len(written):010} 00000 n \n"
        written += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer << /Size {size} /Root 1 0 R {trailer} >>\n"
    return written + f"{end}startxref\n{len(written)}\n%%EOF".encode()
